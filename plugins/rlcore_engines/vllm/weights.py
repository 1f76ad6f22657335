"""The weights of a policy as files that a server reads: a model's folder, and an adapter's.

Every process calls what writes weights, because divided ones are gathered one after another; only those that pass a
folder write, and hold no more than a part of the whole.

Also in this file: the folder through which weights reach the servers of a run.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import shutil
import socket
import tempfile
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from rlcore.errors import ConfigError
from rlcore.protocols import Divisible, Policy, Restorable
from rlcore.sharding import streaming
from rlcore_engines.vllm.client import VLLMServer

PIECE = 2**28
"""Bytes of weights from which a further file is begun."""
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


def check_policy(policy: Policy) -> None:
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
    has_adapter = isinstance(policy, Restorable) and policy.saves_part
    if not has_adapter:
        raise ConfigError("sampler.lora = 'adapter': the policy has no LoRA adapter; set model.peft, or lora: merged")
    with streaming(policy, here=folder is not None, merged=True) as stream:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            place = folder
            stream.finishing(lambda: policy.save_start(place))


def write_adapter(policy: Policy, folder: Path | None) -> None:
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


ADAPTER = "rlcore-policy"
"""Name of the adapter on a server."""


class WeightFiles:
    """The files of the policy's present weights.

    Args:
        shared: a folder in which they have a folder of their own, since other runs may use it too; if None, they are
            beside the run, or without one in a temporary folder.
        has_adapter: whether a server has the model beneath an adapter, and receives the adapter alone.
        continues: whether responses under way go on with new weights.
    """

    def __init__(self, shared: str | None, *, has_adapter: bool, continues: bool = False) -> None:
        self._shared = None if shared is None else Path(shared)
        self._folder: Path | None = None
        self._has_adapter, self._continues, self._written = has_adapter, continues, 0
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    def use(self, run: Path) -> None:
        """Set the folder for a run; it is the same when the run is resumed, so that nothing of a killed one is left."""
        place = f"{socket.gethostname()}:{run.resolve()}".encode()
        own = f"{run.name}-{hashlib.sha256(place).hexdigest()[:12]}"
        self._folder = run / "vllm" if self._shared is None else self._shared / own

    @property
    def place(self) -> Path:
        """Return the folder, with the model in `model` and the adapter in `adapter`."""
        if self._folder is None:
            if self._shared is not None:
                self._shared.mkdir(parents=True, exist_ok=True)
            self._temporary = tempfile.TemporaryDirectory(prefix="rlcore-vllm-", dir=self._shared)
            self._folder = Path(self._temporary.name)
            self._folder.chmod(0o755)  # a server may belong to another user
        return self._folder.resolve()

    def write(self, policy: Policy, number: int, *, here: bool) -> None:
        """Write the weights; collective.

        Args:
            policy: the policy.
            number: tells policies apart: another one has another configuration.
            here: whether this process writes; the others take part in gathering the weights.
        """
        place, is_new = self.place if here else None, self._written != number
        model = None if place is None else place / "model"
        if self._has_adapter:
            if is_new:
                write_base(policy, model)
            write_adapter(policy, None if place is None else place / "adapter")
        else:
            names = write_weights(policy, model)
            if is_new and model is not None:
                write_folder(policy, model, names)
        self._written = number

    def load(self, server: VLLMServer, version: str) -> None:
        """Let a server load the weights that were written last."""
        if self._has_adapter:
            server.load_adapter(str(self.place / "adapter"), version, ADAPTER)
        else:
            server.init_transfer({})
            path = str(self.place / "model")
            server.load(version, lambda: server.update({"path": path}), continues=self._continues)

    def close(self, *, here: bool) -> None:
        """Delete the files, where this process has written them."""
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = self._folder = None
        elif self._folder is not None and here:
            for name in ("model", "adapter", "worker"):
                shutil.rmtree(self._folder / name, ignore_errors=True)
            with contextlib.suppress(OSError):  # something else is in it
                self._folder.rmdir()
