"""The memory that `rlcore plan` estimates for a run on images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ddpo_making import TRAINER

from rlcore.config import merge
from rlcore.training.api import train_from_config
from rlcore_ddpo.pipeline_loading import make_tiny_pipeline
from rlcore_tools.plan.estimate import Estimate, estimate
from rlcore_tools.plan.fake_tensors import LiveBytes

CASES: dict[str, dict[str, Any]] = {
    "micro-batches of an update": {"trainer": {"micro_batch_size": 2}},
    "LoRA, sampled at once": {
        "model": {"lora": {"r": 4}},
        "gen": {"batch_size": 8},
        "trainer": {"micro_batch_size": 1},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny pipeline."""
    folder = tmp_path_factory.mktemp("sd")
    make_tiny_pipeline(size=8).save_pretrained(folder)
    return folder


def values_of(folder: Path, changes: dict[str, Any]) -> dict[str, Any]:
    values = {
        "model": {"path": str(folder)}, "trainer": {**TRAINER, "rollouts": 8, "steps": 2},
        "data": {"prompts": ["a cat", "a dog"], "reward_fn": "brightness"},
    }  # fmt: skip
    return merge(values, changes)


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_the_planned_memory_is_what_tensors_take_in_the_run(name: str, folder: Path, tmp_path: Path) -> None:
    values = values_of(folder, CASES[name])
    short = {"run": {"steps": 2, "root": str(tmp_path)}, "loggers": [], "checkpoint": {"at_end": False}}
    with LiveBytes() as live:
        train_from_config(merge(values, short), "test")
    assert estimate(values, "test").measured.worst.peak == pytest.approx(live.peak, rel=0.15)


@pytest.mark.nightly
def test_a_plan_needs_configurations_alone_and_follows_the_options(folder: Path, tmp_path: Path) -> None:
    for file in folder.rglob("*.json"):
        if file.parent.name != "tokenizer":
            (tmp_path / file.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file.relative_to(folder)).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer").mkdir()

    def planned(**changes: Any) -> Estimate:
        return estimate(values_of(tmp_path, changes), "test")

    pipeline = make_tiny_pipeline(size=8)
    unet, *frozen = (
        4 * sum(p.numel() for p in part.parameters())
        for part in (pipeline.unet, pipeline.vae, pipeline.text_encoder)
    )  # fmt: skip
    plain = planned()
    assert plain.measured.held["parameters that train"] == unet
    assert plain.measured.held["parameters that are frozen"] == pytest.approx(sum(frozen), rel=0.01)
    assert plain.measured.held["rollouts"] == 8 * 3 * 4 * 4 * 8 * 8  # images, latents of each, bytes, elements
    assert planned(gen={"batch_size": 1}).measured.phases[0].peak < plain.measured.phases[0].peak
    update = planned(trainer={"guidance": 1.0}).measured.phases[2].peak
    assert planned(trainer={"guidance": 1.0, "batch_size": 2}).measured.phases[2].peak < update
    assert update < plain.measured.phases[2].peak
