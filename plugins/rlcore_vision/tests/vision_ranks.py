"""A run in several processes, in which a rank has batches without images."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText
from vision_making import picture

import rlcore
from rlcore_vision.tiny_families import FAMILIES

IMAGES = [[picture(1)], None, None, None]
SGD = {"name": "sgd", "lr": 0.1, "max_grad_norm": 0.0, "weight_decay": 0.0}
"""Its steps are in proportion to the gradient, unlike those of AdamW, which hide a factor."""


def trained(folder: str, family: str, shard: str) -> dict[str, Any]:
    """Train for two steps on four rows, of which one has an image, and return how far the weights have moved.

    Returns:
        The sum and the norm of the change of each weight, by name.
    """
    torch.manual_seed(0)
    config, processor = FAMILIES[family]()
    model = AutoModelForImageTextToText.from_config(config)
    for weight in model.parameters():
        if weight.dim() >= 2:
            torch.nn.init.normal_(weight, std=0.2)  # so that the gradient of the encoder is not tiny
    start = Path(folder) / f"start-{os.environ.get('RANK', '0')}"
    model.save_pretrained(start)
    samples = [{"prompt": "what colour ?", "completion": "red", "images": images} for images in IMAGES]
    result = rlcore.train(
        model, tokenizer=processor, trainer={"name": "sft", "batch_size": 4, "optimizer": SGD}, samples=samples,
        run={"root": str(Path(folder)), "name": "run", "steps": 2, "shard": shard},
    )  # fmt: skip
    before, after = load_file(start / "model.safetensors"), load_file(result.run_dir / "model" / "model.safetensors")
    moved = {name: weight.double() - before[name].double() for name, weight in after.items()}
    return {name: [change.sum().item(), change.norm().item()] for name, change in moved.items()}
