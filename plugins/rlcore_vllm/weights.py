"""The weights of a policy as files that a server reads: a model's folder, and an adapter's.

Every process calls what writes weights, because divided ones are gathered one after another; only those that pass a
folder write, and hold no more than a part of the whole.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from rlcore.errors import ConfigError
from rlcore.protocols import Divisible
from rlcore.sharding.divided import streaming

PIECE = 2**28
"""Bytes of weights from which a further file is begun."""
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


def check_policy(policy: Any) -> None:
    """Check that a server of vLLM can have the weights of a policy.

    Raises:
        ConfigError: it cannot.
    """
    is_served = isinstance(policy, Divisible) and getattr(policy, "model", None) is not None
    if not is_served:
        raise ConfigError(
            f"sampler = 'vllm': {type(policy).__name__} is no language model of transformers with a method `weights`, "
            "which a vLLM server loads; use sampler: default"
        )
    if policy.outputs_begin_text:
        raise ConfigError("sampler = 'vllm': vLLM has no encoder-decoder models; use sampler: default")


def write_folder(policy: Any, folder: Path, names: Container[str]) -> None:
    """Write the configuration and the tokenizer of a policy, from which a server is started, without weights.

    Args:
        policy: the policy.
        folder: the folder.
        names: the names of its weights; if the head is among them beside the embedding, an adapter has ended their tie.
    """
    model = policy.model
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    head = model.get_output_embeddings()
    if any(f"{name}.weight" in names for name, module in model.named_modules() if module is head):
        config.tie_word_embeddings = False
    config.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)


def write_weights(policy: Any, folder: Path | None) -> set[str]:
    """Write all weights of a policy, adapters merged, to files of at most PIECE bytes or one weight; collective.

    Args:
        policy: the policy.
        folder: where to write; None only takes part in gathering the weights.

    Returns:
        their names, if they were written.

    Raises:
        OSError: they cannot be written; the other processes are not held up.
    """
    weights = policy.weights()
    try:
        return set() if folder is None else _write_pieces(weights, folder)
    finally:
        for _ in weights:  # the other processes gather until the end
            pass


def _write_pieces(weights: Iterator[tuple[str, Tensor]], folder: Path) -> set[str]:
    folder.mkdir(parents=True, exist_ok=True)
    names, files, piece, size = set[str](), list[Path](), dict[str, Tensor](), 0

    def finish() -> None:
        files.append(folder / f"model-{len(files) + 1:05}.safetensors")
        beside = files[-1].with_name(f".{files[-1].name}")
        save_file(piece, beside, metadata={"format": "pt"})
        beside.replace(files[-1])  # a server may still read the earlier one
        piece.clear()

    for name, value in weights:
        if piece and size + value.nbytes > PIECE:
            finish()
            size = 0
        piece[name] = value.detach().to("cpu").contiguous()
        size += value.nbytes
        names.add(name)
    finish()
    for old in set(folder.glob("model*.safetensors")) - set(files):  # of a policy with more weights
        old.unlink()
    return names


def write_base(policy: Any, folder: Path | None) -> None:
    """Write the model beneath the adapter of a policy, for a server that loads adapters; collective.

    The whole model is completed for it in the CPU's memory of the process that writes.

    Raises:
        ConfigError: the policy has no adapter.
    """
    if not getattr(policy, "saves_part", False):
        raise ConfigError("sampler.lora = 'adapter': the policy has no LoRA adapter; set model.peft, or lora: merged")
    with streaming(policy, here=folder is not None, merged=True) as stream:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            place = folder
            stream.finishing(lambda: policy.save_start(place))


def write_adapter(policy: Any, folder: Path | None) -> None:
    """Write the adapter of a policy in the format of peft; collective. It replaces an earlier one."""
    with streaming(policy, here=folder is not None) as stream:
        if folder is None:
            return
        beside = folder.with_name(f".{folder.name}")
        shutil.rmtree(beside, ignore_errors=True)
        stream.finishing(lambda: policy.save_pretrained(beside))
        folder.mkdir(parents=True, exist_ok=True)
        for name in ADAPTER_FILES:
            (beside / name).replace(folder / name)
        shutil.rmtree(beside, ignore_errors=True)


def is_float32(policy: Any) -> bool:
    """Return whether all weights of a policy are float32."""
    return all(weight.dtype == torch.float32 for weight in policy.model.parameters() if weight.is_floating_point())
