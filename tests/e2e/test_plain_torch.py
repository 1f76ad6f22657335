"""Tests that a third party's policy in plain torch is trained, divided and resumed like one of `transformers`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from depths import by_day
from e2e_processes import lines, newest_checkpoint, run_ranks
from e2e_recurrent import DivisiblePolicy, WholePolicy, make_recurrent
from e2e_stranger import install
from safetensors.torch import load_file
from warm_python import WarmPython

from rlcore.protocols import Divisible

CHILD = str(Path(__file__).with_name("e2e_recurrent.py"))
CLOSE = 1e-6


@pytest.fixture
def train_on(warm_python: WarmPython, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Train the policy in `world` processes: train_on(2, "two", shard="fsdp") writes the run `two`."""
    site = str(install(tmp_path / "site", "acme-recurrent", "e2e_recurrent"))

    def train(world: int, run: str, *, write: str = "safetensors", **options: Any) -> subprocess.CompletedProcess[str]:
        architecture = {"model": {"architecture": options.pop("architecture", "recurrent")}}
        changes = {"run": {"rollouts": "all"} | options, "checkpoint": {"every": 2, "format": write}} | architecture
        return run_ranks(warm_python, world, [CHILD, str(tmp_path), run, json.dumps(changes)], PYTHONPATH=site)

    return train


def check_same(one: Path, other: Path) -> None:
    """Check that two runs sampled the same tokens and have learned the same."""
    outputs = [[(row["prompt"], row["output"]) for row in lines(run / "rollouts.jsonl")] for run in (one, other)]
    assert outputs[0] == outputs[1]
    first, second = (load_file(run / "model/weights.safetensors") for run in (one, other))
    worst = max(float((first[name] - second[name]).abs().max()) for name in first)
    assert worst <= CLOSE
    before = make_recurrent().state_dict()
    assert any(float((first[name] - before[name]).abs().max()) > 100 * CLOSE for name in first)


@pytest.mark.slow
@pytest.mark.parametrize("write", by_day(["safetensors", "dcp"], ["dcp"]))
def test_a_recurrent_policy_divided_among_two_ranks_learns_what_one_process_learns_also_when_it_resumes(
    train_on: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, write: str
) -> None:
    for world, run, options in [
        (1, "one", {"steps": 4}), (2, "two", {"steps": 2, "shard": "fsdp", "write": write}),
        (2, "two", {"steps": 4, "shard": "fsdp", "write": write, "resume": "auto"}),
    ]:  # fmt: skip
        done = train_on(world, run, **options)
        assert done.returncode == 0, done.stderr[-3000:]
    check_same(tmp_path / "one", tmp_path / "two")
    saved = load_file(newest_checkpoint(tmp_path / "two") / "model/weights.safetensors")
    assert {name: each.shape for name, each in saved.items()} == {
        name: each.shape for name, each in make_recurrent().state_dict().items()
    }


@pytest.mark.slow
def test_a_policy_that_offers_no_division_is_refused_with_the_name_of_the_protocol(
    train_on: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = train_on(1, "whole", steps=1, shard="fsdp", architecture="recurrent_whole")
    assert done.returncode
    assert "WholePolicy does not implement rlcore.protocols.Divisible" in done.stderr


def test_every_weight_is_read_whole_from_a_learner_whether_or_not_it_is_divided() -> None:
    policy = DivisiblePolicy(make_recurrent(), None, reference=True)
    assert isinstance(policy, Divisible)
    assert not isinstance(WholePolicy(make_recurrent(), None, reference=False), Divisible)
    own = dict(policy.module.named_parameters())
    for read in (policy.weights, policy.parts):
        found = dict(read())
        assert found.keys() == own.keys()
        assert all(torch.equal(found[name], own[name]) for name in own)
