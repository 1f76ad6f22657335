"""Laws of the watch over the size of steps: it warns once, while the run goes on, with the rate that would arrive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rlcore
from rlcore_report.health.step_size import StepSizeWatch

SMALL = {"policy/approx_kl": 1e-9, "lr": 1e-6}


def test_it_warns_once_at_the_tenth_step() -> None:
    watch = StepSizeWatch(100)
    found = [watch.step(step, SMALL) for step in range(1, 60)]
    assert [place for place, each in enumerate(found, 1) if each is not None] == [10]
    assert found[9] is not None
    # 100 rounds of 1e-9 reach 1e-5 nats a token, and 1 is enough; a rate moves by ten at most
    assert (found[9].option, found[9].value) == ("trainer.optimizer.lr", "1e-05")


def test_a_longer_run_of_the_same_steps_arrives() -> None:
    watch = StepSizeWatch(10_000)
    assert not any(watch.step(step, SMALL) for step in range(1, 60))


def test_it_is_silent_while_the_rate_warms_up_and_in_a_run_limited_by_time() -> None:
    warming = StepSizeWatch(100)
    found = [warming.step(step, {**SMALL, "lr": min(step, 15) * 1e-7}) for step in range(1, 60)]
    assert [place for place, each in enumerate(found, 1) if each is not None] == [40]
    assert not any(StepSizeWatch(None).step(step, SMALL) for step in range(1, 60))


def test_steps_of_a_resumed_run_count_from_where_it_goes_on() -> None:
    watch = StepSizeWatch(1000)
    found = [watch.step(step, SMALL) for step in range(500, 520)]
    assert [place for place, each in enumerate(found, 1) if each is not None] == [10]


def test_it_keeps_nothing_once_it_has_ended() -> None:
    watch = StepSizeWatch(10**6)
    for step in range(1, 3000):
        watch.step(step, {"policy/approx_kl": 0.01})
    assert watch.is_done
    assert not watch._points


@pytest.mark.parametrize(("lr", "warnings"), [(1e-8, 1), (1e-2, 0)])
def test_a_run_warns_on_the_console_with_a_rate(
    tiny_gpt2: Any, char_tokenizer: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str], lr: float, warnings: int
) -> None:
    rlcore.train(
        tiny_gpt2, trainer={"name": "sft", "batch_size": 4, "optimizer": {"lr": lr}}, tokenizer=char_tokenizer,
        samples=[["ab", "cde"], ["hello ", "there."], ["who? ", "me!"], ["long ", "ago it"]],
        eval_samples=[["f", "aa"]], eval={"every": 5, "at_start": True}, checkpoint={"at_end": False},
        run={"root": str(tmp_path), "name": "small", "steps": 12, "report": False}, loggers=[],
    )  # fmt: skip
    text = capfd.readouterr().err
    assert text.count("steps are too small") == warnings
    if warnings:
        assert "trainer.optimizer.lr=1e-07" in text
