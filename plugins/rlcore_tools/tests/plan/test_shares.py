"""Tests of the share of the work that is planned for a rank: that of the rank that has most."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlcore.settings import SamplingConfig
from rlcore.types import Sample
from rlcore_tools.plan import planned_run as draws
from rlcore_tools.plan.planned_run import PlannedRun, learned


def planned(*, world: int, group: int, batch_size: int, lengths: list[int] | None = None) -> Any:
    """Return what is read of a planned run: of samples with these lengths, or of rollouts."""
    samples = [Sample(tuple(range(length)), (False, *[True] * (length - 1))) for length in lengths or []]
    subject = SimpleNamespace(
        world=world, policy=None,
        workload=SimpleNamespace(group=group, batch_size=batch_size, num_sampled=0 if lengths else batch_size),
        settings=SimpleNamespace(gen=SimpleNamespace(max_new_tokens=3), run=SimpleNamespace(seed=0)),
        lengths=SimpleNamespace(samples=samples, prompt=2, num_prompts=0),
    )  # fmt: skip
    subject.share = lambda count: PlannedRun.share(subject, count)
    return subject


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_a_share_is_planned_as_that_of_the_rank_with_most_sequences(world: int) -> None:
    for count in range(10):
        most = max(len(range(count)[rank::world]) for rank in range(world))
        assert PlannedRun.share(planned(world=world, group=1, batch_size=1), count) == most


@pytest.mark.parametrize(("world", "group", "batch_size", "rows"), [
    (1, 1, 6, 6), (2, 1, 7, 4), (2, 2, 8, 4), (2, 2, 10, 6), (4, 2, 10, 4), (3, 4, 12, 4),
])  # fmt: skip
def test_a_rank_learns_from_its_share_of_whole_groups_of_rollouts(
    world: int, group: int, batch_size: int, rows: int
) -> None:
    batch = learned(planned(world=world, group=group, batch_size=batch_size))
    assert len(batch) == rows
    assert batch.mask.sum(1).tolist() == [5] * rows


@pytest.mark.parametrize(
    ("world", "group", "batch_size", "rows"), [(1, 1, 8, 8), (2, 1, 8, 4), (2, 2, 8, 4), (3, 2, 8, 4)]
)
def test_a_rank_learns_from_its_share_of_whole_groups_of_samples(
    world: int, group: int, batch_size: int, rows: int
) -> None:
    assert len(learned(planned(world=world, group=group, batch_size=batch_size, lengths=[4] * 8))) == rows


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize(("num_prompts", "samples", "batch_size", "whole"), [
    (10, 1, 32, 10), (10, 4, 32, 32), (100, 1, 32, 32), (0, 1, 32, 32),
])  # fmt: skip
def test_a_rank_samples_its_share_in_training_and_in_evaluations(
    world: int, num_prompts: int, samples: int, batch_size: int, whole: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, gen = planned(world=world, group=1, batch_size=8), SamplingConfig(max_new_tokens=3)
    subject.settings = SimpleNamespace(gen=gen, eval=SimpleNamespace(gen={}, samples=samples, batch_size=batch_size))
    subject.lengths = SimpleNamespace(prompt=2, eval_prompt=2, num_eval_prompts=num_prompts)
    sizes: dict[str, int] = {}
    monkeypatch.setattr(draws, "_measured", lambda _s, _l, name, _g, size, *_: sizes.setdefault(name, size))
    draws.draw(subject, SimpleNamespace(now=0))  # type: ignore[arg-type]
    assert sizes == {"sampling": -(-8 // world), "evaluation": -(-whole // world)}


def test_the_batch_with_the_most_tokens_is_planned() -> None:
    lengths = [2, 2, 9, 2, 2, 2, 2]
    batch = learned(planned(world=1, group=1, batch_size=2, lengths=lengths))
    assert batch.mask.sum(1).max() == 9
    assert len(batch) == 2 or batch.mask.sum() == 9  # the last batch has a single sample
