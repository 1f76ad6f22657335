"""Tests of the timed policy: any policy's methods are timed and its behaviour is unchanged."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlcore.profiling import begin_step, running
from rlcore.types import Trajectories
from rlcore_report.profile.recorder import Profile
from rlcore_report.profile.session import TimedPolicy

BATCH = Trajectories.stack([[1, 2, 3], [4, 5]], [[False, True, True], [False, True]])


class Plain:
    """Third-party policy whose score is its weight."""

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
    """Policy that computes its methods on attribute access."""

    def __init__(self) -> None:
        self.weight = 1

    @property
    def score(self) -> Any:
        return lambda batch, *, entropy=False: (self.weight * len(batch), entropy)

    @staticmethod
    def reference_score(batch: Any) -> int:
        return -len(batch)


class StandIn:
    """Policy that delegates attribute access, as a wrapper may."""

    def __init__(self) -> None:
        self.inner = Plain()

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


class Dynamic(SimpleNamespace):
    """Policy whose methods are instance attributes."""

    def __init__(self) -> None:
        super().__init__(weight=1)
        self.score = lambda batch, *, entropy=False: (self.weight * len(batch), entropy)
        self.reference_score = lambda batch: -len(batch)


@pytest.mark.parametrize("make", [Plain, Slotted, Module, Given, StandIn, Dynamic])
def test_a_timed_policy_returns_what_the_policy_returns(make: Any) -> None:
    profile = Profile()
    built = make()
    policy: Any = TimedPolicy(built)
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
    assert policy.__class__ is make
    assert repr(policy) == repr(built)
    assert policy.score(BATCH) == (2, False)
    profile.end_steps(2)
    assert rows is profile.first.rows
    assert not profile.steps.rows  # nothing is recorded after the profile has stopped


def test_attributes_are_read_set_and_deleted_on_the_policy_itself() -> None:
    built = Plain()
    policy: Any = TimedPolicy(built)
    policy.weight = 7
    policy.note = "new"
    assert (built.weight, vars(built)["note"], policy.note) == (7, "new", "new")
    assert vars(policy) is vars(built)
    assert dir(policy) == dir(built)
    del policy.note
    assert not hasattr(built, "note")
    with pytest.raises(AttributeError, match="'Plain' object has no attribute 'nothing'"):
        _ = policy.nothing


def test_a_method_that_is_replaced_is_the_one_that_is_timed() -> None:
    policy: Any = TimedPolicy(Plain())
    policy.score = lambda batch: "replaced"
    assert policy.score(BATCH) == "replaced"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda policy: pickle.loads(pickle.dumps(policy))])
def test_a_copy_of_a_timed_policy_scores_with_its_own_weights(copied: Any) -> None:
    policy: Any = TimedPolicy(Plain())
    kept = copied(policy)
    policy.weight = 7
    assert (policy.score(BATCH)[0], kept.score(BATCH)[0]) == (14, 2)
    assert type(kept) is TimedPolicy
