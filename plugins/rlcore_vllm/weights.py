"""The weights of a policy as files that a server reads: a model's folder, and an adapter's."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from rlcore.errors import ConfigError
from rlcore.protocols import Divisible, Policy

FILE = "model.safetensors"
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


def write_folder(policy: Any, folder: Path) -> None:
    """Write the configuration and the tokenizer of a policy, from which a server is started, without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    model = policy.model
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    if getattr(config, "tie_word_embeddings", False) and _has_own_head(policy):
        config.tie_word_embeddings = False
    config.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)


def _has_own_head(policy: Any) -> bool:
    """Return whether the weights name a head beside the embedding, because an adapter has ended their tie."""
    head = policy.model.get_output_embeddings()
    names = {f"{name}.weight" for name, module in policy.model.named_modules() if module is head}
    return any(name in names for name, _ in policy.weights())


def write_weights(policy: Any, folder: Path) -> Path:
    """Write all weights of a policy, adapters merged, and return the file. It replaces an earlier one at once."""
    tensors = {name: value.detach().to("cpu").contiguous() for name, value in policy.weights()}
    return _replace(lambda path: save_file(tensors, path, metadata={"format": "pt"}), folder / FILE)


def _replace(write: Any, path: Path) -> Path:
    """Write a file beside `path` and rename it; a server may still read the earlier one."""
    beside = path.with_name(f".{path.name}")
    write(beside)
    beside.replace(path)
    return path


def write_base(policy: Any, folder: Path) -> None:
    """Write the model beneath the adapter of a policy, for a server that loads adapters.

    Raises:
        ConfigError: the policy has no adapter.
    """
    if not getattr(policy, "saves_part", False):
        raise ConfigError("sampler.lora = 'adapter': the policy has no LoRA adapter; set model.peft, or lora: merged")
    policy.save_start(folder)


def write_adapter(policy: Policy, folder: Path) -> Path:
    """Write the adapter of a policy in the format of peft, and return its folder."""
    beside = folder.with_name(f".{folder.name}")
    shutil.rmtree(beside, ignore_errors=True)
    policy.save_pretrained(beside)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ADAPTER_FILES:
        (beside / name).replace(folder / name)
    shutil.rmtree(beside, ignore_errors=True)
    return folder


def is_float32(policy: Any) -> bool:
    """Return whether all weights of a policy are float32."""
    return all(weight.dtype == torch.float32 for weight in policy.model.parameters() if weight.is_floating_point())
