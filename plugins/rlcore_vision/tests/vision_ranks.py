"""A run in several processes, in which a rank has batches without images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from vision_making import picture

import rlcore
from rlcore_vision.tiny_families import FAMILIES

IMAGES = [[picture(1)], None, None, None]


def trained(folder: str, family: str, shard: str) -> dict[str, Any]:
    """Train for two steps on four rows, of which one has an image, and return sums of all weights."""
    torch.manual_seed(0)
    config, processor = FAMILIES[family]()
    samples = [{"prompt": "what colour ?", "completion": "red", "images": images} for images in IMAGES]
    result = rlcore.train(
        config, tokenizer=processor, trainer={"name": "sft", "batch_size": 4}, samples=samples,
        run={"root": str(Path(folder)), "name": "run", "steps": 2, "shard": shard},
    )  # fmt: skip
    weights = load_file(result.run_dir / "model" / "model.safetensors")
    return {name: [weight.double().sum().item(), weight.double().norm().item()] for name, weight in weights.items()}
