"""Tests of the names of a run: few, and those of rlcore 0.1 still work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from rlcore.training.former_names import FORMER
from rlcore.training.run import Run
from rlcore.types import Trajectories
from rlcore_testing.small import make_gpt2

MOST_NAMES = 35
NOT_OF_POLICIES = {"build_policy", "build_scorer", "build_learner", "build_frozen", "scorer"}


def test_a_run_has_few_public_names_and_no_old_one_among_them() -> None:
    public = {name for name in dir(Run) if not name.startswith("_")} | {
        field.name for field in attrs.fields(Run) if not field.name.startswith("_")
    }
    assert len(public) <= MOST_NAMES
    assert not public & FORMER.keys()


@pytest.mark.parametrize("name", sorted(FORMER.keys() - NOT_OF_POLICIES))
def test_an_old_name_of_a_run_returns_what_the_new_one_does_with_a_deprecation(
    make_trainer: Callable[..., Any], name: str
) -> None:
    inputs = {"prompts": ["ab"], "samples": ["abc", "de"], "reward_fn": lambda samples: [0.0] * len(samples)}
    run, (new, _) = make_trainer("sft", make_gpt2(), inputs=inputs).run, FORMER[name]
    with pytest.warns(DeprecationWarning, match=rf"run\.{name} is now run\.{new.partition('(')[0]}"):
        old = getattr(run, name)
    found = run
    for part in new.split("."):
        found = getattr(found, part)
    assert old == found or type(old) is float


def test_the_builders_of_old_build_with_the_parts_that_they_named(make_trainer: Callable[..., Any]) -> None:
    run = make_trainer("sft", make_gpt2(), inputs={"samples": ["abc"]}).run
    with pytest.warns(DeprecationWarning, match=r"run\.build_policy is now"):
        policy = run.build_policy(q_heads=2)
    assert policy is run.learner
    outputs = policy.score(Trajectories.stack([[1, 2]], [[False, True]]))
    assert outputs.need("values").shape == (1, 2)
    assert outputs.need("q_values").shape == (2, 1, 2)
    with pytest.warns(DeprecationWarning, match=r"run\.build_frozen is now run\.models\.frozen"):
        assert not any(weight.requires_grad for weight in run.build_frozen(make_gpt2()).module.parameters())
    assert run.models.kind == "policy"


def test_a_name_that_a_run_never_had_is_an_attribute_error(make_trainer: Callable[..., Any]) -> None:
    with pytest.raises(AttributeError, match="'Run' object has no attribute 'polcy'"):
        _ = make_trainer("sft", make_gpt2(), inputs={"samples": ["abc"]}).run.polcy
