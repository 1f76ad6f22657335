"""Tests that the law of submitted rounds holds for a right sampler, and fails for wrong ones."""

from __future__ import annotations

from typing import Any

import pytest

from rlcore.errors import RLCoreError
from rlcore.sampling import sample
from rlcore_testing import LawBroken
from rlcore_testing.rig.sampler_calls import check_submissions


class Submitting:
    """Samples when rows are collected, with a copy of the policy.

    Args:
        wrong: what it does wrong.
    """

    def __init__(self, wrong: str = "") -> None:
        self.wrong, self.given = wrong, list[Any]()
        self.first: Any = None
        self.one_version = wrong == "one_version"

    def __call__(
        self, policy: Any, prompts: Any, sampling: Any, *, generator: Any = None, row_seeds: Any = None
    ) -> Any:
        return sample(policy, prompts, sampling, row_seeds=row_seeds)

    def submit(self, policy: Any, prompts: Any, sampling: Any, *, row_seeds: Any, generator: Any = None) -> Any:
        kept = policy if self.wrong == "shared" or self.one_version else policy.sampling_copy()
        if self.wrong == "stale":
            self.first = kept = self.first or kept
        handle = [kept, prompts, sampling, row_seeds]
        self.given.append(handle)
        return handle

    def collect(self, handle: Any) -> Any:
        if not handle and self.wrong == "breaks":
            raise IndexError
        if not handle:
            raise RLCoreError("they were collected")
        kept, prompts, sampling, seeds = handle
        if self.wrong == "first":
            prompts = self.given[0][1] or prompts
        if self.wrong != "repeats":
            handle.clear()
        return sample(kept, prompts, sampling, row_seeds=seeds)


@pytest.mark.parametrize("wrong", ["", "one_version"])
def test_right_samplers_hold(wrong: str) -> None:
    check_submissions(Submitting(wrong))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("first", "submission 3 of 3, collected in the order [3, 1, 2]: there should be the 8 same sequences"),
        ("repeats", "`collect` returned rows again"),
        ("breaks", "`collect` raised IndexError"),
        ("shared", "a submission that is collected after the policy has changed"),
        ("stale", "a submission of new weights"),
    ],
)
def test_a_wrong_sampler_breaks_the_law(wrong: str, says: str) -> None:
    with pytest.raises(LawBroken) as caught:
        check_submissions(Submitting(wrong))
    assert says in str(caught.value)
