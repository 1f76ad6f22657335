"""Save nested plain state to one safetensors file, and load it back exactly.

Tensors are stored unchanged. Everything else is a JSON tree in the file's metadata, in which every object has a single
key, its type:

    {"dict": [[key, value], ...]}   a mapping, in its order, with keys that are strings or integers
    {"tensor": "name"}              the tensor of that name in the file
    {"int": "0x20000000000001"}     an integer above 2**53, which some JSON parsers round
    {"float": "nan"}                nan, inf or -inf, which JSON cannot represent

Also in this file: seed every global random number generator of a process, and save and restore their states.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rlcore.errors import CheckpointError
from rlcore.sharding import SUFFIX, SavedTensor, TensorFile, is_dtensor, saved_parts

SCHEMA = 1
METADATA_KEY = "rlcore.checkpoints.state"
_UPDATER = ["optimizer", "schedule", "scaler", "num_skipped"]
"""The first keys of `Updater.state_dict`. Only an updater restores its optimizer from rows of tensors."""
MAX_TREE_BYTES = 40_000_000
"""Maximum size of the tree: safetensors rejects headers of 100 MB, and quotes are escaped a second time in them."""


def save_state(path: Path, state: object, *, whole: Callable[[Tensor], Tensor] | None = None) -> None:
    """Write `state` to the file `path`.

    Args:
        path: the file; its folder must exist.
        state: dicts (keys str or int), lists, tuples (loaded as lists), str, bool, int, float, None, tensors.
        whole: returns the whole tensor of each of `divided_tensors`, in their order; not called if there are none. If
            it is left out, the tensors of `named_parts` are, which `write_parts` writes to `parts_folder(path)`.

    Raises:
        CheckpointError: a value has another type; the message contains its dotted path.
        OSError: the file cannot be written.
    """
    tensors: dict[str, Tensor] = {}
    try:
        tree = _encode(state, "", tensors)
        text = json.dumps({"schema": SCHEMA, "tree": tree}, separators=(",", ":"), allow_nan=False)
    except RecursionError:
        raise CheckpointError(f"{path}: the state is nested too deeply to be saved, or contains itself") from None
    if len(text) > MAX_TREE_BYTES:
        raise CheckpointError(
            f"{path}: the state has {len(text) / 1e6:.0f} MB besides its tensors; the maximum is "
            f"{MAX_TREE_BYTES / 1e6:.0f} MB: store long lists of numbers as tensors"
        )
    if whole is not None and any(is_dtensor(each) for each in tensors.values()):
        with TensorFile(path, tensors, {METADATA_KEY: text}) as file:
            for name, tensor in tensors.items():
                file.write(name, whole(tensor) if is_dtensor(tensor) else tensor)
        return
    tensors = {name: each for name, each in tensors.items() if not is_dtensor(each)}
    try:
        save_file(_own_memory(tensors), str(path), metadata={METADATA_KEY: text})
    except SafetensorError as error:
        raise io_failure(error) or CheckpointError(f"{path}: {error}") from error


def divided_tensors(state: object) -> list[Tensor]:
    """Return the tensors in a state of which each process has a part, in the order in which they are written."""
    if is_dtensor(state):
        return [state]
    within = state.values() if isinstance(state, Mapping) else state if isinstance(state, list | tuple) else ()
    return [tensor for each in within for tensor in divided_tensors(each)]


def named_parts(state: object) -> dict[str, Tensor]:
    """Return the tensors in a state of which each process has a part, by the names that a file has for them."""
    tensors: dict[str, Tensor] = {}
    _encode(state, "", tensors)
    return {name: tensor for name, tensor in tensors.items() if is_dtensor(tensor)}


def parts_folder(path: Path) -> Path:
    """Return the folder with the tensors that the file `path` of a state lacks, if processes wrote them in parallel."""
    return path.with_suffix(SUFFIX)


def load_state(path: Path, *, by_rows: bool = False) -> Any:
    """Load the state that `save_state` wrote to `path`; tensors are on the CPU, each in its own memory.

    Args:
        path: the file.
        by_rows: leave tensors in the states of updaters' optimizers unread, except single numbers: each is a
            `SavedTensor`.

    Raises:
        CheckpointError: the file is missing, damaged, or was not written by `save_state`.
    """
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            text = (file.metadata() or {}).get(METADATA_KEY)
            saved = {name: SavedTensor.of(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    saved |= saved_parts(parts_folder(path))

    def whole(name: str) -> Tensor:
        return saved[name][...]

    def rows(name: str) -> Tensor | SavedTensor:
        return saved[name] if saved[name].shape else whole(name)

    if text is None:
        raise CheckpointError(f"{path}: is not a state saved by rlcore: its metadata has no '{METADATA_KEY}'")
    try:
        document = json.loads(text)
        if document["schema"] != SCHEMA:
            raise CheckpointError(
                f"{path}: has schema {document['schema']}, and this rlcore reads {SCHEMA}: use the rlcore that wrote it"
            )
        return _decode(document["tree"], whole, rows if by_rows else whole)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise CheckpointError(f"{path}: its tree is damaged: {type(error).__name__}: {error}") from error


def io_failure(error: Exception) -> OSError | None:
    """Return the OSError behind a failed write, which safetensors and tokenizers wrap; None for any other error."""
    if isinstance(error, OSError):
        return error
    match = re.search(r"(.*?)\s*\(os error (\d+)\)", str(error), re.DOTALL)
    return OSError(int(match[2]), match[1].rpartition(": ")[2]) if match else None


def _encode(value: object, path: str, tensors: dict[str, Tensor]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return _encode_scalar(value)
    if isinstance(value, Tensor):
        return {"tensor": _add_tensor(value, path, tensors)}
    if isinstance(value, list | tuple):
        return [_encode(item, _join(path, i), tensors) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if isinstance(key, bool) or not isinstance(key, str | int):
                raise CheckpointError(f"state{_at(path)} has the key {key!r}: keys must be strings or integers")
        return {"dict": [[_encode(k, path, tensors), _encode(v, _join(path, k), tensors)] for k, v in value.items()]}
    raise CheckpointError(
        f"state{_at(path)} is a {type(value).__module__}.{type(value).__qualname__}, which cannot be saved: "
        "use dicts, lists, str, bool, int, float, None or tensors"
    )


def _encode_scalar(value: object) -> object:
    """Encode a scalar; subclasses, such as numpy's float64 or a string enum, become the plain type."""
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value) if abs(value) <= 2**53 else {"int": hex(value)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": str(float(value))}
    return str(value) if isinstance(value, str) else value


def _decode(node: object, read: Callable[[str], object], read_moments: Callable[[str], object]) -> object:
    """Return the value of a node; `read_moments` returns the tensors of updaters' optimizers, `read` all others."""
    if isinstance(node, list):
        return [_decode(item, read, read_moments) for item in node]
    if not isinstance(node, dict):
        return node
    ((kind, content),) = node.items()
    if kind == "dict":
        is_updater = [key for key, _ in content[: len(_UPDATER)]] == _UPDATER
        readers = [read_moments if is_updater and key == "optimizer" else read for key, _ in content]
        return {
            _decode(key, read, read): _decode(value, reader, read_moments)
            for reader, (key, value) in zip(readers, content, strict=True)
        }
    if kind == "tensor":
        return read(content)
    if kind == "int":
        return int(content, 16)
    if kind == "float":
        return float(content)
    raise ValueError(f"unknown kind {kind!r}")


def _add_tensor(tensor: Tensor, path: str, tensors: dict[str, Tensor]) -> str:
    if tensor.is_meta or tensor.layout != torch.strided or tensor.is_quantized or tensor.dtype == torch.complex128:
        kind = "meta" if tensor.is_meta else str(tensor.layout).removeprefix("torch.")
        raise CheckpointError(
            f"state{_at(path)} is a tensor that cannot be saved ({kind}, {tensor.dtype}): "
            "only dense, unquantised tensors with values, and none of complex128"
        )
    stem = path or "state"
    name, number = stem, 1
    while name in tensors or name == "__metadata__":
        number += 1
        name = f"{stem}~{number}"
    if is_dtensor(tensor):
        tensors[name] = tensor
        return name
    tensors[name] = tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
    return name


def _own_memory(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that share memory with an earlier one, because safetensors refuses shared memory."""
    seen: set[int] = set()
    own = {}
    for name, tensor in tensors.items():
        address = tensor.untyped_storage().data_ptr()
        own[name] = tensor.clone() if address in seen else tensor
        seen.add(address)
    return own


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _at(path: str) -> str:
    return f".{path}" if path else ""


def seed_everything(seed: int) -> None:
    """Seed the global random generators of Python, numpy and torch."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  the user's functions may use the global one
    torch.manual_seed(seed)


def seed_dropout(seed: int, rank: int) -> None:
    """Seed torch's global generator anew on ranks above 0, so that rows on different ranks have different dropout."""
    if rank:
        torch.manual_seed(seed * 1009 + rank)


def capture_rng(generators: Mapping[str, torch.Generator]) -> dict[str, Any]:
    """Return the state of Python's, numpy's and torch's global generators and of `generators`, for `save_state`."""
    return {
        "python": random.getstate(),
        "numpy": _plain(np.random.get_state(legacy=False)),  # noqa: NPY002 (other libraries may use the global generator)
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "generators": {name: generator.get_state() for name, generator in generators.items()},
    }


def restore_rng(state: Mapping[str, Any], generators: Mapping[str, torch.Generator], *, rank: int = 0) -> None:
    """Restore every generator from the state that `capture_rng` returned.

    If it has another number of CUDA devices, which processes on one machine share out, the state of the one that
    belonged to this process becomes that of the present one.

    Raises:
        CheckpointError: the state lacks one of `generators`.
    """
    missing = sorted(set(generators) - set(state["generators"]))
    if missing:
        raise CheckpointError(
            f"the checkpoint has no state of the random generator '{missing[0]}', only of "
            f"{', '.join(sorted(state['generators'])) or 'none'}: it was written by another version of this trainer"
        )
    version, internal, gauss_next = state["python"]
    random.setstate((version, tuple(internal), gauss_next))
    np.random.set_state(state["numpy"])  # noqa: NPY002 (the same)
    torch.set_rng_state(state["torch"])
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if devices and devices == len(state["cuda"]):
        torch.cuda.set_rng_state_all(state["cuda"])
    elif devices and state["cuda"]:
        torch.cuda.set_rng_state(state["cuda"][rank % len(state["cuda"])])
    for name, generator in generators.items():
        generator.set_state(state["generators"][name])


def _plain(value: object) -> Any:
    """Convert numpy arrays and scalars to lists and numbers."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
