"""Every trainer learns from rows with images, as it is, and a resumed run is the run that was not stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from vision_making import picture

import rlcore
from rlcore.errors import RLCoreError
from rlcore_vision.tiny_families import FAMILIES

QUESTION = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what colour ?"}]}]
SEEN: list[Any] = []


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def reward_fn(outputs: list[str], images: list[list[Image.Image]]) -> list[float]:
    """Reward long outputs for dark images, and short ones for bright images."""
    SEEN.extend(images)
    return [
        len(output) * (1.0 if image[0].getpixel((0, 0))[0] > 100 else -1.0)
        for output, image in zip(outputs, images, strict=True)
    ]


PROMPTS = [{"images": [picture(k)], "prompt": QUESTION} for k in range(4)]
SAMPLES = [{"images": [picture(k)], "messages": [*QUESTION, *said("red")]} for k in range(4)]
PAIRS = [
    {"images": [picture(k)], "prompt": QUESTION, "chosen": said("red"), "rejected": said("blue")} for k in range(4)
]
OPTIMIZER = {"lr": 1e-2}
ONLINE: dict[str, Any] = {"prompts": PROMPTS, "reward_fn": reward_fn, "gen": {"max_new_tokens": 3}}
RUNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sft": ({"name": "sft", "batch_size": 2, "micro_batch_size": 1}, {"samples": SAMPLES}),
    "dpo": ({"name": "dpo", "batch_size": 2}, {"samples": PAIRS}),
    "grpo": ({"name": "grpo", "rollouts": 8, "num_generations": 4, "micro_batch_size": 3, "kl_coef": 0.1}, ONLINE),
    "ppo": ({"name": "ppo", "rollouts": 8, "batch_size": 4}, ONLINE),
    "rft": ({"name": "rft"}, ONLINE),
}


def train(trainer: str, folder: Path, steps: int, *, change: Any = None, family: str = "llava", **run: Any) -> Any:
    options, inputs = RUNS[trainer]
    torch.manual_seed(0)
    config, processor = FAMILIES[family]()
    for name, value in (change or {}).items():
        setattr(processor.image_processor, name, value)
    return rlcore.train(
        config, tokenizer=processor, trainer={**options, "optimizer": OPTIMIZER}, **inputs, eval={"show": 0},
        run={"root": str(folder.parent), "name": folder.name, "steps": steps, **run},
    )  # fmt: skip


def weights(result: Any) -> dict[str, torch.Tensor]:
    return load_file(result.run_dir / "model" / "model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("trainer", sorted(RUNS))
def test_a_trainer_moves_the_encoder_and_resumes_exactly(trainer: str, tmp_path: Path) -> None:
    SEEN.clear()
    whole = weights(train(trainer, tmp_path / "whole", 3))
    begun = weights(train(trainer, tmp_path / "parts", 2))
    resumed = weights(train(trainer, tmp_path / "parts", 3, resume="auto"))
    vision = [name for name in whole if "vision_tower" in name]
    assert any((whole[name] != begun[name]).any() for name in vision)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert all(isinstance(image, Image.Image) for images in SEEN for image in images)
    assert bool(SEEN) == ("reward_fn" in RUNS[trainer][1])


def test_a_run_is_not_resumed_with_another_image_processor(tmp_path: Path) -> None:
    train("sft", tmp_path / "run", 1)
    changes: list[dict[str, Any]] = [{"image_mean": [0.0] * 3}, {"image_std": [1.0] * 3}, {"resample": 0}]
    for change in changes:
        with pytest.raises(RLCoreError, match=r"model\.tokenizer"):
            train("sft", tmp_path / "run", 2, change=change, resume="auto")
