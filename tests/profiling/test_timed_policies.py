"""Any policy is timed, whoever wrote it, and nothing else about it changes."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlcore.profiling import begin_step, running
from rlcore.types import Trajectories
from rlcore_profile.policies import stop_timing, time_scoring
from rlcore_profile.recorder import Profile

BATCH = Trajectories.stack([[1, 2, 3], [4, 5]], [[False, True, True], [False, True]])


class Plain:
    """A policy of a stranger's, whose weight is what it scores."""

    def __init__(self) -> None:
        self.weight = 1

    def score(self, batch: Any, *, entropy: bool = False) -> tuple[int, bool]:
        return self.weight * len(batch), entropy

    def reference_score(self, batch: Any) -> int:
        return -len(batch)


class Slotted:
    __slots__ = ("weight",)

    def __init__(self) -> None:
        self.weight = 1

    score, reference_score = Plain.score, Plain.reference_score


class Module(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = 1

    score, reference_score = Plain.score, Plain.reference_score


class Given:
    """One that computes its methods when they are asked for."""

    def __init__(self) -> None:
        self.weight = 1

    @property
    def score(self) -> Any:
        return lambda batch, *, entropy=False: (self.weight * len(batch), entropy)

    @staticmethod
    def reference_score(batch: Any) -> int:
        return -len(batch)


class StandIn:
    """One that passes on what it is asked for, as a wrapper may."""

    def __init__(self) -> None:
        self.inner = Plain()

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


@pytest.mark.parametrize("make", [Plain, Slotted, Module, Given, StandIn])
def test_any_policy_is_timed_and_otherwise_as_it_was(make: Any) -> None:
    profile = Profile()
    policy = make()
    cls = type(policy)
    time_scoring(policy)
    with running(profile):
        begin_step(0)
        assert policy.score(BATCH, entropy=True) == (2, True)
        with torch.no_grad():
            assert policy.score(BATCH) == (2, False)
        assert policy.reference_score(BATCH) == -2
    profile.end_steps(1)
    rows = profile.first.rows
    assert {path: (row.calls, row.tokens) for path, row in rows.items()} == {
        ("update",): (1, 5), ("update", "forward"): (1, 0), ("score",): (2, 10),
    }  # fmt: skip
    assert isinstance(policy, make)
    assert (type(policy).__name__, type(policy).__module__) == (cls.__name__, cls.__module__)
    stop_timing(policy)
    assert type(policy) is cls
    assert policy.score(BATCH) == (2, False)
    stop_timing(policy)
    assert type(policy) is cls


def test_a_copy_of_a_timed_policy_scores_with_its_own_weights() -> None:
    policy = Plain()
    time_scoring(policy)
    kept = copy.deepcopy(policy)
    policy.weight = 7
    assert (policy.score(BATCH)[0], kept.score(BATCH)[0]) == (14, 2)


def test_a_policy_that_cannot_be_timed_is_left_alone_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    policy = SimpleNamespace(score=lambda batch: batch)
    time_scoring(policy)  # what it holds itself goes before what its class has
    assert policy.score(2) == 2
    whole = 3
    time_scoring(whole)
    assert "the policy's scoring cannot be timed" in capsys.readouterr().err
