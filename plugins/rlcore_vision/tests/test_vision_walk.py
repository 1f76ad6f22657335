"""Each trainer trains each family for two steps, with images in every form, adapters, frozen encoders and resumed runs.

The pairs of family and trainer each occur once; forms of images and ways of training are spread over them.
"""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText
from vision_making import picture

import rlcore
from rlcore_vision.image_store import open_picture
from rlcore_vision.tiny_families import FAMILIES

QUESTION = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what colour ?"}]}]
TRAINERS = ("sft", "dpo", "reward", "grpo", "ppo", "rft")
FORMS = ("path", "pil", "bytes", "feature")
WAYS = ("whole", "lora", "frozen")
LORA = {"type": "lora", "r": 2, "target_modules": ["q_proj", "v_proj"]}
ENCODERS = ("vision_tower", "vision_model", "visual")
OPTIONS: dict[str, dict[str, Any]] = {
    "sft": {"batch_size": 2, "micro_batch_size": 1},
    "dpo": {"batch_size": 2},
    "reward": {"batch_size": 2},
    "grpo": {"rollouts": 4, "num_generations": 2, "kl_coef": 0.1},
    "ppo": {"rollouts": 4, "batch_size": 2},
    "rft": {},
}
PAIRS = list(itertools.product(enumerate(sorted(FAMILIES)), enumerate(TRAINERS)))
WALK = [
    pytest.param(family, trainer, FORMS[(i + k) % 4], WAYS[(i + k) % 3], id=f"{family}-{trainer}")
    for (i, family), (k, trainer) in PAIRS
]
RESUMED = [("gemma3", "grpo", "bytes"), ("idefics3", "dpo", "feature"), ("qwen2_vl", "reward", "path")]
"""Pairs of which no other test resumes a run."""


def images_as(form: str, folder: Path) -> list[Any]:
    """Return the same four images in a form of rows; `feature` is a column of `datasets`."""
    made: list[Any] = []
    for k in range(4):
        file = io.BytesIO()
        picture(k).save(file, "PNG")
        (folder / f"{k}.png").write_bytes(file.getvalue())
        made.append({"path": str(folder / f"{k}.png"), "pil": picture(k), "bytes": file.getvalue()}.get(form))
    return made


def rows_of(trainer: str, form: str, folder: Path) -> Any:
    """Return rows of a trainer, as a list or as a data set of `datasets`, whose contents are all lists of parts."""
    texts: dict[str, Any] = {"chosen": "red", "rejected": "no"}
    if form == "feature":
        texts = {name: [{"type": "text", "text": text}] for name, text in texts.items()}
    answers = {name: [{"role": "assistant", "content": text}] for name, text in texts.items()}
    rows: list[dict[str, Any]] = [{"image": image} for image in images_as(form, folder)]
    for row in rows:
        if trainer == "sft":
            row["messages"] = [*QUESTION, *answers["chosen"]]
        else:
            row |= {"prompt": QUESTION, **(answers if trainer in {"dpo", "reward"} else {})}
    if form != "feature":
        return rows
    import datasets

    columns = {key: [row[key] for row in rows] for key in rows[0]}
    columns["image"] = [str(folder / f"{k}.png") for k in range(4)]
    return datasets.Dataset.from_dict(columns).cast_column("image", datasets.Image())


def reward_fn(outputs: list[str], image: list[Any]) -> list[float]:
    """Reward long outputs for dark images, and short ones for bright images; an image comes as its row has it."""
    bright = [open_picture(each).getpixel((0, 0))[0] > 100 for each in image]  # type: ignore[index]
    return [len(output) * (1.0 if is_bright else -1.0) for output, is_bright in zip(outputs, bright, strict=True)]


def train(family: str, trainer: str, rows: Any, folder: Path, spec: Any = None, **options: Any) -> Any:
    config, processor = FAMILIES[family]()
    torch.manual_seed(0)
    architecture = {"architecture": "vision_scorer"} if trainer == "reward" else {}
    is_online = trainer in {"grpo", "ppo", "rft"}
    inputs = {"prompts": rows, "reward_fn": reward_fn, "gen": {"max_new_tokens": 3}} if is_online else {"samples": rows}
    run = {"root": str(folder), "name": "run", "report": False, "steps": 2, **options.pop("run", {})}
    return rlcore.train(
        {"path": spec or config, **architecture, **options}, tokenizer=processor, loggers=[], **inputs,
        trainer={"name": trainer, "optimizer": {"lr": 1e-2}, **OPTIONS[trainer]}, eval={"show": 0}, run=run,
    )  # fmt: skip


def is_inside(name: str) -> bool:
    """Return whether a parameter is one of the vision encoder, but not of a projection inside it."""
    parts = name.split(".")
    return any(part in parts for part in ENCODERS) and "merger" not in parts


@pytest.mark.slow
@pytest.mark.parametrize(("family", "trainer", "form", "way"), WALK)
def test_a_family_is_trained(family: str, trainer: str, form: str, way: str, tmp_path: Path) -> None:
    rows = rows_of(trainer, form, tmp_path)
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(FAMILIES[family]()[0])
    for name, weight in model.named_parameters():
        if name.endswith("mm_input_projection_weight"):  # Gemma 3 begins with zeros, which hide the image
            torch.nn.init.normal_(weight, std=0.2)
    before = {id(weight): weight.detach().clone() for weight in model.parameters()}
    names = {id(weight): name for name, weight in model.named_parameters()}
    options: dict[str, Any] = {"lora": {"peft": LORA}, "frozen": {"freeze_vision": True}}.get(way, {})
    result = train(family, trainer, rows, tmp_path / "whole", model, **options)
    trained = dict(result.run.models.learner.module.named_parameters())
    assert all(bool(weight.isfinite().all()) for weight in trained.values())
    moved = {names[id(each)] for each in trained.values() if id(each) in names and not before[id(each)].equal(each)}
    if way == "lora":
        assert not moved
        adapters = {name: weight for name, weight in trained.items() if "lora_B" in name}
        assert any(weight.any() for weight in adapters.values())
        assert any(is_inside(name) and weight.any() for name, weight in adapters.items()) or family == "qwen2_vl"
    else:
        assert any(not is_inside(name) for name in moved)
        assert any(map(is_inside, moved)) == (way != "frozen")
    lines = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert max(line["step"] for line in lines) == 2
    if trainer != "reward":
        row = {"prompt": QUESTION, "images": [Image.new("RGB", (8, 8), "red")]}
        (output,) = result.generate([row], max_new_tokens=2)
        assert isinstance(output, str)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "trainer", "form"), RESUMED)
def test_a_run_of_a_family_is_resumed_exactly(family: str, trainer: str, form: str, tmp_path: Path) -> None:
    rows = rows_of(trainer, form, tmp_path)
    whole = train(family, trainer, rows, tmp_path / "whole")
    train(family, trainer, rows, tmp_path / "parts", run={"steps": 1})
    parts = train(family, trainer, rows, tmp_path / "parts", run={"resume": "auto"})
    for one, other in zip(
        parts.run.models.learner.module.parameters(), whole.run.models.learner.module.parameters(), strict=True
    ):
        assert torch.equal(one, other)
