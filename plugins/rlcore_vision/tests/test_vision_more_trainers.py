"""Two steps of the trainers that are not those of the walk, each with a tiny LLaVA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_vision_walk import QUESTION, is_inside
from transformers import AutoModelForImageTextToText
from vision_making import picture

import rlcore
from rlcore_vision.tiny_families import llava

ROWS = [{"images": [picture(k)], "prompt": QUESTION} for k in range(4)]
SAMPLES = [{"images": [picture(k)], "messages": [*QUESTION, {"role": "assistant", "content": "red"}]} for k in range(4)]
TRAINERS: dict[str, dict[str, Any]] = {
    "distill": {"batch_size": 4},
    "distill_prompts": {"batch_size": 4, "on_policy": 0.5},
    "online_dpo": {"batch_size": 4},
    "reinforce": {"rollouts": 8},
    "ilql": {"batch_size": 4},
}


def reward_fn(outputs: list[str]) -> list[float]:
    """Reward long outputs."""
    return [float(len(output)) for output in outputs]


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_trainer_moves_the_encoder(trainer: str, tmp_path: Path) -> None:
    config, processor = llava()
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config)
    options: dict[str, Any] = {"name": trainer, "optimizer": {"lr": 1e-2}, **TRAINERS[trainer]}
    if trainer.startswith("distill"):
        options["teacher"] = str(tmp_path / "teacher")
        AutoModelForImageTextToText.from_config(config).save_pretrained(options["teacher"])
        processor.save_pretrained(options["teacher"])
    inputs: dict[str, Any] = {"samples": SAMPLES} if trainer in {"distill", "ilql"} else {"prompts": ROWS}
    if trainer == "ilql":
        inputs["rewards"] = [1.0, -1.0, 0.5, 0.0]
    if trainer in {"online_dpo", "reinforce"}:
        inputs["reward_fn"] = reward_fn
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    result = rlcore.train(
        model, tokenizer=processor, trainer=options, **inputs, gen={"max_new_tokens": 3}, eval={"show": 0}, loggers=[],
        run={"root": str(tmp_path), "name": "run", "report": False, "steps": 2},
    )  # fmt: skip
    moved = {name for name, weight in model.named_parameters() if not weight.equal(before[name])}
    assert all(bool(weight.isfinite().all()) for weight in model.parameters())
    assert any(map(is_inside, moved))
    assert any("language_model" in name for name in moved)
    assert '"step": 2' in (result.run_dir / "metrics.jsonl").read_text()
