"""Tests that two processes learn the same as one; the files on disk are compared, not only exit codes."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from e2e_processes import lines, newest_checkpoint, run_process
from e2e_scenarios import learn_from, train
from safetensors.torch import load_file

STEADY = {"eps": 1e-3}
"""Options with which Adam does not amplify rounding errors."""


def assert_near(one: Path, other: Path) -> None:
    files = sorted(path.name for path in one.glob("*.safetensors"))
    assert files
    for name in files:
        first, second = load_file(one / name), load_file(other / name)
        assert first.keys() == second.keys()
        for key, tensor in first.items():
            torch.testing.assert_close(tensor, second[key], rtol=0, atol=1e-5, msg=lambda m, key=key: f"{key}: {m}")


@pytest.mark.nightly
def test_two_ranks_learn_sft_as_one_does(torchrun: Callable, tmp_path: Path) -> None:
    # 23 samples in batches of 5 and micro-batches of 3: per-rank shares of 3 and 2; the last batch of 3 gives 2 and 1.
    changes = {"run": {"steps": 7}, "trainer": {"optimizer": {"lr": 1e-3, **STEADY}}}
    train("sft_plain", tmp_path, "one", changes)
    done = torchrun("sft_plain", "two", changes)
    assert (tmp_path / "two" / "model").is_dir(), done.stderr
    assert_near(tmp_path / "one" / "model", tmp_path / "two" / "model")
    for one, two in zip(lines(tmp_path / "one/metrics.jsonl"), lines(tmp_path / "two/metrics.jsonl"), strict=True):
        assert one.keys() == two.keys()
        for key in ("loss/total", "data/tokens", "eval/loss"):
            assert abs(one.get(key, 0) - two.get(key, 0)) < 1e-4


@pytest.mark.nightly
def test_two_ranks_learn_from_a_store_as_one_does(torchrun: Callable, tmp_path: Path) -> None:
    learn_from(tmp_path / "store", tmp_path, "one")
    done = torchrun("learn_from", "two", tmp_path / "store")
    assert (tmp_path / "two-learned").is_dir(), done.stderr
    assert_near(tmp_path / "one-learned", tmp_path / "two-learned")
    exchanges, updates = json.loads((tmp_path / "two-exchanges.json").read_text())
    assert exchanges == updates > 1  # once per update, regardless of the number of micro-batches


@pytest.mark.slow
def test_two_ranks_keep_the_rollouts_of_both_in_the_prompts_order(two_ranks: Callable, tmp_path: Path) -> None:
    # A step assigns the same prompts with one process and with two, whatever the policy outputs.
    changes = {"run": {"steps": 2, "rollouts": 7}}
    train("ppo_plain", tmp_path, "one", changes)
    done = two_ranks("ppo_plain", "two", changes)
    one, two = (lines(tmp_path / run / "rollouts.jsonl") for run in ("one", "two"))
    assert [(row["step"], row["prompt"]) for row in one] == [(row["step"], row["prompt"]) for row in two], done.stderr
    assert [row["step"] for row in one] == [1] * 7 + [2] * 7


@pytest.mark.slow
def test_two_ranks_learn_the_same_whether_a_frozen_trunk_is_run_once_or_in_every_pass(
    two_ranks: Callable, tmp_path: Path
) -> None:
    for run, room in (("once", 2.0), ("each", 0.0)):
        model = {"unfrozen_layers": 1, "trunk_cache_gb": room}
        done = two_ranks("ppo_plain", run, {"run": {"steps": 2}, "model": model, "trainer": {"optimizer": STEADY}})
        assert (tmp_path / run / "model").is_dir(), done.stderr
    assert_near(tmp_path / "once" / "model", tmp_path / "each" / "model")


@pytest.mark.slow
def test_two_ranks_stop_at_the_same_step_and_resume(torchrun: Callable, two_ranks: Callable, tmp_path: Path) -> None:
    stopped = torchrun("ppo_config", "run", {"run": {"steps": 4}, "eval": {"every": 1}}, "SIGTERM@3")
    assert newest_checkpoint(tmp_path / "run").name == "00000002", stopped.stderr
    assert stopped.stderr.count("SIGTERM: finishing step 2") == 1
    resumed = two_ranks("ppo_config", "run", {"run": {"steps": 4, "resume": "auto"}, "eval": {"every": 1}})
    assert (tmp_path / "run" / "model").is_dir(), resumed.stderr
    assert newest_checkpoint(tmp_path / "run").name == "00000004"
    rows = Counter((row["step"], row["prompt"]) for row in lines(tmp_path / "run/completions.jsonl"))
    assert set(rows.values()) == {1}
    assert len(rows) == 4 * 3
    assert [row["step"] for row in lines(tmp_path / "run/metrics.jsonl")] == [1, 1, 2, 2, 3, 3, 4, 4]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "said"),
    [("2", "WORLD_SIZE = 2, but the other processes cannot be found"), ("", "WORLD_SIZE = '': must be a whole number")],
)
def test_a_world_size_without_a_launcher_is_an_error_that_says_so(world: str, said: str) -> None:
    done = run_process([sys.executable, "-c", "from rlcore.ranks import Ranks; Ranks('bf16')"], WORLD_SIZE=world)
    assert done.stderr.splitlines()[-1] == (
        f"rlcore.errors.RanksError: {said}; start the script with torchrun --nproc_per_node N or accelerate launch, "
        "or unset WORLD_SIZE to run one process"
    )
