"""Pixel values of images, as processors of `transformers` return them: their memory, and those of several in one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def num_bytes(pixels: Mapping[str, Tensor]) -> int:
    """Return the memory of the pixel values of an image."""
    return sum(array.numel() * array.element_size() for array in pixels.values())


def join(arrays: Sequence[Tensor], dim: int) -> Tensor:
    """Concatenate the arrays of several images; smaller ones are padded with zeros, as processors pad them."""
    if all(array.shape[dim + 1 :] == arrays[0].shape[dim + 1 :] for array in arrays):
        return torch.cat(list(arrays), dim)
    height, width = (max(array.shape[k] for array in arrays) for k in (-2, -1))
    pad = torch.nn.functional.pad
    return torch.cat([pad(each, (0, width - each.shape[-1], 0, height - each.shape[-2])) for each in arrays], dim)
