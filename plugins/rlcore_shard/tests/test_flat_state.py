"""Tests of the state of an optimizer that steps a part of concatenated parameters, and of refusals of ZeRO."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlcore.errors import CheckpointError, ConfigError
from rlcore.settings import RunConfig
from rlcore_shard.divisible import Fragment, gather_state, load_state
from rlcore_shard.zero import build_zero3

ALONE: Any = SimpleNamespace(world=1, is_main=True, device=torch.device("cpu"))


def moments(*values: float, step: float) -> dict[str, torch.Tensor]:
    return {"step": torch.tensor(step), "exp_avg": torch.tensor(values)}


def second_half() -> tuple[torch.optim.Optimizer, list[list[Fragment]]]:
    """Elements 4 to 6 of the concatenation of 3 and 2 x 2 elements, and one of padding."""
    flat = torch.zeros(4, requires_grad=True)
    first = Fragment(flat, torch.Size([3]))
    second = Fragment(flat, torch.Size([2, 2]), start=0, offset=1, size=3)
    return torch.optim.AdamW([flat], lr=1.0), [[first, second]]


def test_a_part_of_concatenated_parameters_keeps_its_elements_of_their_moments() -> None:
    optimizer, groups = second_half()
    whole = moments(4, 5, 6, 7, step=9)
    saved = {0: moments(1, 2, 3, step=9), 1: whole | {"exp_avg": whole["exp_avg"].view(2, 2)}}
    load_state(optimizer, groups, {"state": saved, "param_groups": [{"lr": 0.5, "params": [0, 1]}]})
    (flat,) = optimizer.param_groups[0]["params"]
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert optimizer.state[flat]["exp_avg"].tolist() == [5, 6, 7, 0]
    state = gather_state(optimizer, groups, ALONE)
    assert state["param_groups"][0]["params"] == [0, 1]
    assert [kept["exp_avg"].tolist() for kept in state["state"].values()] == [[0, 0, 0], [[0, 5], [6, 7]]]
    assert [float(kept["step"]) for kept in state["state"].values()] == [9, 9]


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        ({0: moments(1, 2, 3, step=8), 1: moments(4, 5, 6, 7, step=9)}, r"'step' differs between .* \(8 and 9\)"),
        ({0: moments(1, 2, 3, step=8)}, "missing of parameters that have made no step"),
        ({1: moments(4, 5, 6, 7, step=9)}, "missing of parameters that have made no step"),
    ],
)
def test_parameters_with_different_numbers_of_steps_are_not_stepped_together(
    saved: dict[int, Any], message: str
) -> None:
    optimizer, groups = second_half()
    with pytest.raises(CheckpointError, match=f"{message}.*run.shard=fsdp"):
        load_state(optimizer, groups, {"state": saved, "param_groups": [{"params": [0, 1]}]})


REFUSED: dict[str, tuple[dict[str, Any], dict[str, str], str]] = {
    "fp16": ({"mixed_precision": "fp16"}, {}, "'fp16' is not supported: use bf16"),
    "several machines": ({}, {"LOCAL_WORLD_SIZE": "2"}, "run.shard_within=world"),
    "no deepspeed": ({}, {}, r"needs the package deepspeed: pip install 'rlcore-shard\[deepspeed\]'"),
}


@pytest.mark.parametrize(("given", "environment", "message"), REFUSED.values(), ids=REFUSED)
def test_zero_strategies_are_refused_with_advice(
    given: dict[str, Any], environment: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    ranks: Any = SimpleNamespace(**{"mixed_precision": "no", "world": 4, "device": torch.device("cpu"), **given})
    with pytest.raises(ConfigError, match=message):
        build_zero3(RunConfig(shard="zero3"), ranks)
