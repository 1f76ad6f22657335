"""Files of tensors that are written and read one at a time, so that they need not be in memory together.

In a checkpoint whose tensors all processes write in parallel, a folder takes the place of a file (`saved_parts`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import EllipsisType
from typing import Self

import attrs
import torch
from safetensors.torch import save
from torch import Tensor

from rlcore.plugins.observers import find_parallel_files

SUFFIX = ".dcp"
"""Suffix of the folder in which tensors are that a file with the suffix `.safetensors` has otherwise."""
SINGLE, INDEX, PARTS = "model.safetensors", "model.safetensors.index.json", f"model{SUFFIX}"
"""Files of a model's weights, as the libraries of Hugging Face name them, and the folder in their place."""
LARGEST = "50GB"
"""Size from which the weights are written to several files; the default of `transformers`."""


@attrs.frozen(eq=False)
class SavedTensor:
    """A tensor in a file: `saved[...]` reads it whole, `saved[first:last]` its rows.

    Attributes:
        shape: the shape of the whole tensor.
        dtype: the type of its elements.
        read: returns what is indexed, in memory of its own.
    """

    shape: torch.Size
    dtype: torch.dtype
    read: Callable[[slice | EllipsisType], Tensor]

    @classmethod
    def of(cls, tensor: Tensor) -> SavedTensor:
        """Return a tensor of torch, which safetensors leaves in its file until it is read, as a saved one."""
        # Copies, because the file's memory is not aligned, and kernels may round differently on unaligned memory.
        return cls(tensor.shape, tensor.dtype, lambda rows: tensor[rows].clone())

    def __getitem__(self, rows: slice | EllipsisType) -> Tensor:
        """Read the tensor, or rows of it."""
        return self.read(rows)


def saved_parts(folder: Path) -> Mapping[str, SavedTensor]:
    """Return the tensors in a folder that all processes wrote in parallel; empty if there is no folder.

    Raises:
        CheckpointError: the folder cannot be read.
        ConfigError: no plugin reads it.
    """
    return find_parallel_files(str(folder)).read(folder) if folder.is_dir() else {}


class TensorFile:
    """A safetensors file whose tensors are written in any order, each once, in the block of a `with` statement.

    Args:
        path: the file; one that exists is replaced.
        layout: name → a tensor of the shape and dtype that will be written; its values are not read.
        metadata: the file's metadata.
    """

    def __init__(self, path: Path, layout: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
        header: dict[str, object] = {"__metadata__": dict(metadata)}
        self._offsets: dict[str, int] = {}
        self._layout, end = layout, 0
        # Tensors of large numbers first, as safetensors orders them, so that each is aligned in the file.
        for name in sorted(layout, key=lambda each: (-layout[each].dtype.itemsize, each)):
            like, self._offsets[name] = layout[name], end
            end += like.numel() * like.dtype.itemsize
            header[name] = {
                "dtype": _dtype_name(like.dtype), "shape": list(like.shape),
                "data_offsets": [self._offsets[name], end],
            }  # fmt: skip
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        self._data = 8 + len(text)
        self._file = path.open("wb")
        self._file.write(len(text).to_bytes(8, "little") + text)
        self._file.truncate(self._data + end)

    def write(self, name: str, tensor: Tensor) -> None:
        """Write the values of a tensor.

        Raises:
            ValueError: the tensor has another shape or dtype than in the layout, or was written before.
            OSError: the file cannot be written.
        """
        like = self._layout[name]
        if (tensor.shape, tensor.dtype) != (like.shape, like.dtype):
            raise ValueError(
                f"{self._file.name}: {name} is {tensor.dtype} {list(tensor.shape)}, not {like.dtype} {list(like.shape)}"
            )
        if name not in self._offsets:
            raise ValueError(f"{self._file.name}: {name} was written before")
        self._file.seek(self._data + self._offsets.pop(name))
        self._file.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Close the file.

        Raises:
            ValueError: tensors of the layout were not written, and nothing else failed.
        """
        self._file.close()
        if self._offsets and kind is None:
            raise ValueError(f"{self._file.name}: not written: {', '.join(sorted(self._offsets)[:5])}")


def write_weights(folder: Path, layout: Mapping[str, Tensor], weights: Iterable[tuple[str, Tensor]]) -> None:
    """Write the weights of a model to one file, or to several with an index.

    Args:
        folder: the folder.
        layout: name → a tensor of the shape and dtype of a weight.
        weights: the name and value of each.
    """
    from huggingface_hub import split_torch_state_dict_into_shards

    plan = split_torch_state_dict_into_shards(
        dict(layout), filename_pattern="model{suffix}.safetensors", max_shard_size=LARGEST
    )
    with ExitStack() as stack:
        files = {
            file: stack.enter_context(
                TensorFile(folder / file, {name: layout[name] for name in held}, {"format": "pt"})
            )
            for file, held in plan.filename_to_tensors.items()
        }
        for name, whole in weights:
            files[plan.tensor_to_filename[name]].write(name, whole)
    if plan.is_sharded:
        index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
        (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype in headers of safetensors."""
    content = save({"t": torch.empty(0, dtype=dtype)})
    return str(json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["t"]["dtype"])
