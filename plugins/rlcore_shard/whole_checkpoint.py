"""Copy a checkpoint that all processes wrote in parallel to one in which tensors are whole."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from rlcore.checkpoints.checkpoint import Checkpoints
from rlcore.checkpoints.durability import put_in_place
from rlcore.checkpoints.manifest import OWN_FIELDS, write_manifest
from rlcore.checkpoints.run_folder import RunDir
from rlcore.checkpoints.state import io_failure, parts_folder
from rlcore.errors import CheckpointError, io_remedy
from rlcore.sharding.tensor_file import PARTS, SUFFIX, SavedTensor, TensorFile, saved_parts, write_weights
from rlcore_shard.parts import MODEL, TRAINER


def export_checkpoint(checkpoint: Path, place: Path) -> None:
    """Copy a checkpoint to the folder `place`, with whole tensors in safetensors files.

    Raises:
        CheckpointError: the checkpoint is missing or damaged, or the copy cannot be written.
        DamagedCheckpoint: a file of the checkpoint differs from its checksum.
    """
    if place.exists():
        raise CheckpointError(f"{place}: exists already: name a folder that does not exist")
    manifest = Checkpoints.open(checkpoint).manifest
    beside = place.with_name(f".tmp-{place.name}")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        shutil.copytree(checkpoint, beside, ignore=shutil.ignore_patterns(f"*{SUFFIX}"))
        if weights := saved_parts(checkpoint / MODEL / PARTS):
            write_weights(beside / MODEL, _layout(weights), ((name, each[...]) for name, each in weights.items()))
        if state := saved_parts(checkpoint / parts_folder(TRAINER)):
            _complete(checkpoint / TRAINER, state, beside / TRAINER)
        start = RunDir(checkpoint.parent.parent).start
        if manifest.get("start") is not None and start.is_dir():
            shutil.copytree(start, RunDir(beside).start)
        further = {name: value for name, value in manifest.items() if name not in OWN_FIELDS}
        write_manifest(beside, step=manifest["step"], score=manifest["score"], further=further)
        put_in_place(beside, place)
    except Exception as error:
        failure = io_failure(error)
        if failure is None:
            raise
        raise CheckpointError(f"{place}: could not be written: {failure}; {io_remedy(failure)}") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _complete(source: Path, parts: Mapping[str, SavedTensor], target: Path) -> None:
    """Write a safetensors file with the tensors of another one and further ones."""
    with safe_open(str(source), framework="pt", device="cpu") as file:
        tensors = {name: SavedTensor.of(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118  not a dict
        tensors |= parts
        with TensorFile(target, _layout(tensors), file.metadata()) as whole:
            for name, saved in tensors.items():
                whole.write(name, saved[...])


def _layout(tensors: Mapping[str, SavedTensor]) -> dict[str, Tensor]:
    return {name: torch.empty(each.shape, dtype=each.dtype, device="meta") for name, each in tensors.items()}
