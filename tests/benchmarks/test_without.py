"""Tests of without.py: every measured technique is disabled by an option that the measured program accepts."""

from __future__ import annotations

from pathlib import Path

import case_techniques
import pytest
import without
from run_options import merged, nested

from rlcore.models.speed import BY_NAME, TECHNIQUES

ELSEWHERE = {"packing", "length_groups", "frozen_trunk", "fused_logprobs", "small_logprobs"}
"""Techniques measured by separate cases, against other programs or with other models."""


def test_each_technique_is_measured(tmp_path: Path) -> None:
    duels = case_techniques.duels(tmp_path, quick=True)
    measured = [one.theirs[1] for one in duels if one.theirs and one.theirs[0] == "without.py"]
    assert sorted([*measured, *ELSEWHERE]) == sorted(BY_NAME)


@pytest.mark.parametrize("technique", TECHNIQUES, ids=lambda technique: technique.name)
def test_the_option_switches_the_technique_off(technique: object) -> None:
    name = technique.name  # type: ignore[attr-defined]
    flag, option = without.arguments_without(name)
    assert flag == "--set"
    sections = nested([option])
    for part in BY_NAME[name].option.split("."):
        sections = sections[part]
    assert sections is False


def test_an_unknown_technique_cannot_be_switched_off() -> None:
    with pytest.raises(KeyError):
        without.arguments_without("perpetual_motion")


def test_options_are_merged_section_by_section() -> None:
    given = {"name": "ppo", "optimizer": {"lr": 0.1}}
    changes = nested(["optimizer.options.fused=false", "epochs=2"])
    assert merged(given, changes) == {
        "name": "ppo", "optimizer": {"lr": 0.1, "options": {"fused": False}}, "epochs": 2,
    }  # fmt: skip
