"""Tests of rewards computed while sampling continues: runs learn and write the same as without overlap."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import rlcore
from rlcore.config import evolve
from rlcore.types import Trajectories
from rlcore_testing.rig.compare_runs import MEASURED
from rlcore_testing.rig.isolate import call_on_two_ranks
from rlcore_testing.small import make_gpt2, make_tokenizer


def consonants(outputs: list[str]) -> list[float]:
    return [sum(letter not in "aeiou" for letter in output) / 5 for output in outputs]


async def short(outputs: list[str]) -> list[float]:
    await asyncio.sleep(0)
    return [-float(len(output)) for output in outputs]


def train(folder: Path, name: str, *, overlap: bool, trainer: str = "ppo", **changes: Any) -> Any:
    options = {"ppo": {"rollouts": 12, "batch_size": 6, "epochs": 1}, "reinforce": {"rollouts": 12}}
    options["rft"] = {"generations": 4, "improve_steps": 1}
    given: dict[str, Any] = {
        "reward_fn": [(consonants, 1.0), (short, 0.1)], "gen": {"max_new_tokens": 6, "batch_size": 5}, **changes,
    }  # fmt: skip
    return rlcore.train(
        make_gpt2(), trainer={"name": trainer, **options[trainer]}, tokenizer=make_tokenizer(),
        prompts=["ab", "hello", "q", "see you."], loggers=[],
        run={"root": str(folder), "name": name, "steps": 2, "rollouts": "all", "overlap_rewards": overlap}, **given,
    )  # fmt: skip


def lines(folder: Path, name: str) -> tuple[list[Any], list[Any]]:
    """Return the logged rollouts and metrics, without times."""
    files = [(folder / name / file).read_text().splitlines() for file in ("rollouts.jsonl", "metrics.jsonl")]
    rollouts, metrics = ([json.loads(line) for line in file] for file in files)
    return rollouts, [{key: row[key] for key in row if not key.startswith(MEASURED)} for row in metrics]


@pytest.mark.parametrize("trainer", ["ppo", "reinforce", "rft"])
def test_scoring_during_sampling_does_not_change_training_or_files(tmp_path: Path, trainer: str) -> None:
    ours = train(tmp_path, "ours", overlap=True, trainer=trainer)
    theirs = train(tmp_path, "theirs", overlap=False, trainer=trainer)
    assert lines(tmp_path, "ours") == lines(tmp_path, "theirs")
    assert len(lines(tmp_path, "ours")[0]) >= 24
    state = theirs.policy.module.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in ours.policy.module.state_dict().items())
    assert ours.metrics.keys() == theirs.metrics.keys()
    assert "rlcore-overlap" not in {thread.name for thread in threading.enumerate()}


def test_a_stop_in_the_middle_of_a_round_finishes_the_step(tmp_path: Path) -> None:
    def stopping(outputs: list[str]) -> list[float]:
        os.kill(os.getpid(), signal.SIGTERM)  # Python delivers the signal to the main thread
        return [0.0] * len(outputs)

    result = train(tmp_path, "stopped", overlap=True, reward_fn=stopping, gen={"max_new_tokens": 6})
    assert result.run.step == 1


@pytest.mark.parametrize(
    ("tells", "size", "said"),
    [
        (False, 5, "the sampler reports no finished sub-batches"),
        (True, 0, "gen.batch_size = 0 samples all prompts at once"),
    ],
)
def test_rewards_that_cannot_overlap_with_sampling_are_computed_afterwards_with_a_warning(
    make_trainer: Callable[..., Any], tells: bool, size: int, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def plain(policy: Any, prompts: Any, sampling: Any, *, generator: Any = None) -> Trajectories:
        return rlcore.sample(policy, prompts, sampling, generator=generator)

    seen: list[list[str]] = []

    def note(prompts: list[str]) -> list[float]:
        seen.append(prompts)
        return [0.0] * len(prompts)

    inputs = {"prompts": ["ab", "hello", "q"], "reward_fn": note}
    sections = {"gen": {"max_new_tokens": 4, "batch_size": size}}
    trainer = make_trainer("ppo", make_gpt2(), sections=sections, inputs=inputs, rollouts=12)
    sampling = trainer.run.sampling
    sampling._config = evolve(sampling._config, run=evolve(sampling._config.run, overlap_rewards=True))
    if not tells:
        sampling.sampler = plain
    for _ in range(2):
        trainer.rollout()
    assert [len(prompts) for prompts in seen] == [12, 12]
    assert capfd.readouterr().err.count(said) == 1


def in_company(folder: str) -> None:
    """Train twice on this rank, with overlapped rewards and without."""
    for name, overlap in (("ours", True), ("theirs", False)):
        train(Path(folder), name, overlap=overlap)


@pytest.mark.slow
def test_scoring_during_sampling_on_two_ranks_does_not_change_training_or_files(tmp_path: Path) -> None:
    call_on_two_ranks(
        "test_overlapped_runs:in_company", {"folder": str(tmp_path)}, what="overlapping rewards on two ranks"
    )
    assert lines(tmp_path, "ours") == lines(tmp_path, "theirs")
    assert [row["step"] for row in lines(tmp_path, "ours")[0]] == [1] * 12 + [2] * 12
