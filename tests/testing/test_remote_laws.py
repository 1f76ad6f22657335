"""Tests that laws of samplers with workers hold for a right one, and fail where answers are lost, late or repeated."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch

from rlcore.components import Component
from rlcore.sampling import sample
from rlcore.types import Trajectories
from rlcore_testing import LawBroken, Remote, Subject
from rlcore_testing.law import laws_in
from rlcore_testing.laws import remote_samplers

LAWS = {law.name: law for law in laws_in(remote_samplers)}
FAULTS = ("dies", "late", "twice")


class Far:
    """A sampler that cuts a round in two, and whose answer to the first part may have a fault.

    Attributes:
        faults: what happens to the next answers.
        handle: returns the answers that are kept, and their rows, of an answer with a fault.
    """

    def __init__(self, handle: Callable[[Any, str], list[Any]] | None = None, **wrong: Any) -> None:
        self.faults: list[str] = []
        self.handle = handle or (lambda ask, _: [ask()])
        self.wrong = wrong
        self.kept: Any = None

    def __call__(
        self, policy: Any, prompts: Any, sampling: Any, *, generator: Any = None, row_seeds: Any = None,
        on_batch: Any = None,
    ) -> Trajectories:  # fmt: skip
        if "stale" in self.wrong:
            self.kept = policy = self.kept or copy.deepcopy(policy)
        parts: list[Any] = []
        for rows in (range(len(prompts) // 2), range(len(prompts) // 2, len(prompts))):

            def ask(rows: Any = rows, shift: int = self.wrong.get("shift", 0)) -> Any:
                seeds = None if row_seeds is None else [row_seeds[row] + shift for row in rows]
                found = sample(policy, [prompts[row] for row in rows], sampling, row_seeds=seeds)
                return list(rows), found

            fault = self.faults.pop() if self.faults else ""
            parts += self.handle(ask, fault) if fault else [ask()]
        for rows, batch in parts:
            if on_batch is not None:
                on_batch(rows, batch)
        whole = Trajectories.concat([batch for _, batch in parts])
        if "off" in self.wrong:
            whole = whole.with_columns(logprobs=whole["logprobs"] + 1e-3)
        return whole


def subject(far: Far) -> Subject:
    component: Component[Any] = Component("samplers", "far", "acme", "0.3", "a sampler", far, None)
    remote = Remote(disturb=lambda fault, sampler: sampler.faults.append(fault), faults=FAULTS)
    return Subject("acme", (), component, remotes={"far": remote})


@pytest.mark.parametrize("name", LAWS)
def test_a_right_sampler_keeps_the_law(name: str) -> None:
    assert LAWS[name].when(subject(Far()))
    LAWS[name](subject(Far()))


def lost(ask: Any, fault: str) -> list[Any]:
    return []


def otherwise(ask: Any, fault: str) -> list[Any]:
    rows, batch = ask()
    return [(rows, attrs.evolve(batch, tokens=torch.where(batch.action_mask, 3, batch.tokens)))]


def repeated(ask: Any, fault: str) -> list[Any]:
    return [ask(), ask()]


def reported_twice(ask: Any, fault: str) -> list[Any]:
    rows, batch = ask()
    return [(rows * 2, batch)]


@pytest.mark.parametrize(
    ("name", "far", "says"),
    [
        ("workers_sample_what_one_process_does", Far(shift=1), "there should be the 24 same sequences"),
        ("workers_sample_what_one_process_does", Far(off=True), "'logprobs' should be the same within 1e-05"),
        ("workers_follow_every_update", Far(off=True), "log-probs should be the policy's within 1e-05"),
        ("workers_follow_every_update", Far(stale=True), "after 1 updates, "),
        ("a_worker_that_dies_changes_nothing", Far(lost), "there should be the 24 same sequences; there are 12"),
        ("a_worker_that_dies_changes_nothing", Far(otherwise), "number 0 is [3, "),
        ("an_answer_that_comes_late_changes_nothing", Far(repeated), "the 24 same sequences; there are 36"),
        ("an_answer_that_comes_twice_counts_once", Far(repeated), "the 24 same sequences; there are 36"),
        ("an_answer_that_comes_twice_counts_once", Far(reported_twice), "should be called with each row once"),
    ],
)  # fmt: skip
def test_a_wrong_sampler_breaks_the_law(name: str, far: Far, says: str) -> None:
    with pytest.raises(LawBroken) as caught:
        LAWS[name](subject(far))
    assert says in str(caught.value)


def test_laws_of_workers_apply_to_samplers_that_are_described_as_far_as_they_can_fail() -> None:
    bare = attrs.evolve(subject(Far()), remotes={})
    assert not any(law.when(bare) for law in LAWS.values())
    other = attrs.evolve(bare, remotes={"far": Remote(draws_by_seeds=False)})
    assert [name for name, law in LAWS.items() if law.when(other)] == ["workers_follow_every_update"]
