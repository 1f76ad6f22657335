"""Rewards of images: the size as a JPEG file, and brightness; conversion between tensors and PIL images."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor

QUALITY = 95
"""JPEG quality of Black et al. 2023."""


def to_pil(images: Tensor) -> list[Image.Image]:
    """Return float[n, 3, H, W] in [0, 1] as PIL images."""
    pixels = (images.detach().float().cpu().clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1)
    return [Image.fromarray(each) for each in pixels.contiguous().numpy()]


def jpeg_incompressibility(images: Tensor | Sequence[Image.Image]) -> list[float]:
    """Return the size of each image as a JPEG file of quality 95, in kB (Black et al. 2023, arXiv:2305.13301)."""
    return [_jpeg_bytes(image) / 1000 for image in (to_pil(images) if isinstance(images, Tensor) else images)]


def jpeg_compressibility(images: Tensor | Sequence[Image.Image]) -> list[float]:
    """Return minus the size of each image as a JPEG file, in kB."""
    return [-size for size in jpeg_incompressibility(images)]


def brightness(images: Tensor | Sequence[Image.Image]) -> list[float]:
    """Return the mean over the pixels and colours of each image, in [0, 1]."""
    if isinstance(images, Tensor):
        means: list[float] = images.double().flatten(1).mean(1).tolist()
        return means
    return [sum(_means(image)) / 3 for image in images]


def example_outputs() -> dict[str, Any]:
    """Return twelve images for the conformance kit."""
    generator = torch.Generator().manual_seed(0)
    noise, level = torch.rand(12, 3, 8, 8, generator=generator), torch.linspace(0, 1, 12).view(-1, 1, 1, 1)
    return {"images": level * noise + (1 - level) * noise.mean((2, 3), keepdim=True)}


def _jpeg_bytes(image: Image.Image) -> int:
    file = io.BytesIO()
    image.convert("RGB").save(file, format="JPEG", quality=QUALITY)
    return file.tell()


def _means(image: Image.Image) -> list[float]:
    pixels = torch.frombuffer(bytearray(image.convert("RGB").tobytes()), dtype=torch.uint8).view(-1, 3)
    means: list[float] = (pixels.double().mean(0) / 255).tolist()
    return means


for _reward in (jpeg_compressibility, jpeg_incompressibility, brightness):
    _reward.example_outputs = example_outputs  # type: ignore[attr-defined]  # read by the conformance kit
