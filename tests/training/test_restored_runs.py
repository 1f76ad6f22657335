"""Tests of what a run takes from a checkpoint that depends on the present process: time, rank and folder."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rlcore
from rlcore.checkpoints.checkpoint import Checkpoint, Checkpoints
from rlcore.training.resume import Saver
from rlcore_testing.small import make_gpt2, make_tokenizer

Make = Callable[..., Any]
GLOBAL = ("python", "numpy", "torch")


@pytest.fixture
def make(make_trainer: Make) -> Make:
    return lambda: make_trainer("sft", make_gpt2(), inputs={"samples": ["ab", "cd"]})


def draw_all() -> None:
    """Advance the global generators."""
    random.random()
    np.random.rand()  # noqa: NPY002  the global one
    torch.rand(())


def test_the_time_of_a_run_is_that_before_and_that_of_the_present_process(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make().run
    run.progress.started = 400.0
    with monkeypatch.context() as patch:
        patch.setattr("rlcore.training.progress.time.monotonic", lambda: 450.0)
        assert run.progress.elapsed_s == 50.0
        run.progress.elapsed_before_s = 1000.0
        assert run.progress.elapsed_s == 1050.0


def test_a_checkpoint_adds_up_the_time_of_every_process(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint: Checkpoint | None = None
    for total in (30.0, 60.0, 90.0):
        trainer = make()
        saver = Saver(trainer.run, {}, {})
        if checkpoint is not None:
            saver.restore(trainer, checkpoint)
        trainer.run.progress.started = 100.0
        with monkeypatch.context() as patch:
            patch.setattr("rlcore.training.progress.time.monotonic", lambda: 130.0)
            assert trainer.run.progress.elapsed_s == total
            checkpoint = Checkpoints.open(saver.checkpoint(trainer))


def test_a_rank_continues_with_its_own_random_state_and_a_new_one_with_a_new_state(make: Make) -> None:
    states, checkpoint = saved_by_two(make)
    for rank in range(4):
        trainer = make()
        trainer.run.ranks.rank = rank
        torch.manual_seed(100 + rank)
        saver = Saver(trainer.run, {}, {})
        own = saver.rng
        saver.restore(trainer, checkpoint)
        expected = states[rank] if rank < 2 else own
        for name in GLOBAL:
            assert same(saver.rng[name], expected[name]), f"rank {rank}: {name}"
        assert torch.equal(saver.rng["generators"]["run"], states[0]["generators"]["run"])
        if rank >= 2:
            assert not torch.equal(saver.rng["torch"], states[0]["torch"])


def saved_by_two(make: Make) -> tuple[list[dict[str, Any]], Checkpoint]:
    """Return the random states of two ranks, which differ, and a checkpoint with them."""
    trainer = make()
    saver = Saver(trainer.run, {}, {})
    torch.rand(3, generator=trainer.run.sampling.generator)
    states = []
    for _ in range(2):
        draw_all()
        saver.note_random_state()
        states.append(saver.rng)
    gather = trainer.run.ranks.gather_to_main
    trainer.run.ranks.gather_to_main = lambda rows: states if rows == [saver.rng] else gather(rows)
    return states, Checkpoints.open(saver.checkpoint(trainer))


def same(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else list_of(one) == list_of(other)


def list_of(value: Any) -> Any:
    """Return a value with lists in place of tuples, as a checkpoint has them."""
    if isinstance(value, dict):
        return {key: list_of(part) for key, part in value.items()}
    return [list_of(part) for part in value] if isinstance(value, list | tuple) else value


def test_a_checkpoint_that_the_run_already_has_is_not_written_again(tmp_path: Path) -> None:
    def train(**run: Any) -> Path:
        result = rlcore.train(
            make_gpt2(), trainer="sft", samples=[["a", "b"], ["c", "d"]], tokenizer=make_tokenizer(), loggers=[],
            observers=[written], run={"root": str(tmp_path), "steps": 1, **run},
        )  # fmt: skip
        return max(result.run_dir.glob("checkpoints/*"))

    class Written(list[Path]):
        def on_checkpoint(self, run: Any, path: Path) -> None:
            self.append(path)

    written = Written()
    first = train(name="one")
    assert written == [first]
    assert train(name="one", resume="auto") == first
    assert written == [first]
    other = train(name="other", resume=str(first))  # a run of its own, whose folder has none
    assert written == [first, other]
    assert other.parent != first.parent
