"""Tests of without.py: every measured technique is disabled by an option that the measured program accepts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

import rlcore
from benchmarks import case_techniques, without
from benchmarks.run_options import merged, nested
from rlcore_transformers.models import causal
from rlcore_transformers.models.speed import BY_NAME
from rlcore_transformers.sampling import sampler

ELSEWHERE = {"packing", "length_groups", "frozen_trunk", "fused_logprobs", "small_logprobs"}
"""Techniques measured by separate cases, against other programs or with other models."""


def test_each_technique_is_measured(tmp_path: Path) -> None:
    duels = case_techniques.duels(tmp_path, quick=True)
    measured = [one.theirs[1] for one in duels if one.theirs and one.theirs[0] == "without.py"]
    assert sorted([*measured, *ELSEWHERE]) == sorted(BY_NAME)


MEASURED = [
    one.theirs
    for one in case_techniques.duels(Path("unused"), quick=True)
    if one.theirs and one.theirs[0] == "without.py"
]


class ReachedError(Exception):
    """The program has built what it would measure."""


@pytest.mark.parametrize("command", MEASURED, ids=[command[1] for command in MEASURED])
def test_the_measured_program_runs_with_the_technique_off(
    command: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop the program at the run, or at the sampler, that it would measure, and read its configuration."""
    built: dict[str, Any] = {}

    def stop_at(**sections: Any) -> None:
        built.update(sections)
        raise ReachedError

    monkeypatch.setattr(rlcore, "train", lambda model, **sections: stop_at(model=model, **sections))
    monkeypatch.setattr(causal, "build_causal_lm", lambda _, config, **__: built.update(model=attrs.asdict(config)))
    monkeypatch.setattr(sampler, "build_sampler", lambda config: stop_at(sampler=attrs.asdict(config)))
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(sys, "argv", list(command))
    with pytest.raises(ReachedError):
        without.main()
    value: Any = built
    for part in BY_NAME[command[1]].option.split("."):
        value = value[part]
    assert value is False


def test_an_unknown_technique_cannot_be_switched_off() -> None:
    with pytest.raises(KeyError):
        without.arguments_without("perpetual_motion")


def test_options_are_merged_section_by_section() -> None:
    given = {"name": "ppo", "optimizer": {"lr": 0.1}}
    changes = nested(["optimizer.options.fused=false", "epochs=2"])
    assert merged(given, changes) == {
        "name": "ppo", "optimizer": {"lr": 0.1, "options": {"fused": False}}, "epochs": 2,
    }  # fmt: skip
