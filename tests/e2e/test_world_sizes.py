"""Tests that the number of processes changes nothing that a run samples or learns, also if it changes on resuming."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e_batches import make_batch
from e2e_processes import lines, newest_checkpoint, run_ranks
from safetensors.torch import load_file
from warm_python import WarmPython

from rlcore.checkpoints.state import load_state

CHILD = str(Path(__file__).with_name("child.py"))
SCENARIOS = ("ppo_plain", "grpo_plain", "rft_plain", "reinforce_plain")
"""REINFORCE deals 11 rollouts as 6 and 5, or 4, 4 and 3; GRPO refills rounds with fewer groups than ranks."""
CLOSE = 1e-6


@pytest.fixture
def train_on(warm_python: WarmPython, tmp_path: Path) -> Callable[..., None]:
    """Train all SCENARIOS in `world` processes, in folders of tmp_path named RUN-SCENARIO."""

    def train(world: int, run: str, **changes: object) -> None:
        # With a large eps AdamW does not enlarge rounding errors of small gradients.
        steady = {"trainer": {"optimizer": {"eps": 1e-2}}}
        plain = json.dumps(steady | {"run": changes, "eval": {"every": 2}, "checkpoint": {"every": 2}})
        done = run_ranks(warm_python, world, [CHILD, ",".join(SCENARIOS), str(tmp_path), run, plain])
        assert done.returncode == 0, done.stderr[-3000:]
        assert "seeded anew" not in done.stderr

    return train


def check_same(one: Path, other: Path) -> None:
    for name in ("rollouts.jsonl", "completions.jsonl"):
        rows = [[(row["step"], row["prompt"], row["output"]) for row in lines(run / name)] for run in (one, other)]
        assert rows[0] == rows[1], f"{other.name}: {name}"
        assert len({output for _, _, output in rows[0]}) > 2
    first, second = (load_file(run / "model" / "model.safetensors") for run in (one, other))
    assert first.keys() == second.keys()
    worst = max(float((tensor - second[key]).abs().max()) for key, tensor in first.items())
    assert worst <= CLOSE, f"{other.name}: parameters differ by {worst:.1e}"


@pytest.mark.nightly
def test_one_to_four_ranks_sample_and_learn_the_same(train_on: Callable[..., None], tmp_path: Path) -> None:
    for world, run in ((1, "one"), (2, "two"), (3, "three"), (4, "four")):
        train_on(world, run, steps=3, rollouts="all")
    for scenario in SCENARIOS:
        for run in ("two", "three", "four"):
            check_same(tmp_path / f"one-{scenario}", tmp_path / f"{run}-{scenario}")


@pytest.mark.nightly
def test_a_run_that_is_resumed_with_other_numbers_of_ranks_equals_an_uninterrupted_one(
    train_on: Callable[..., None], tmp_path: Path
) -> None:
    train_on(1, "straight", steps=6, rollouts="all")
    for world, steps in ((2, 2), (1, 4), (3, 6)):
        train_on(world, "changing", steps=steps, rollouts="all", resume="auto")
    for scenario in SCENARIOS:
        changing = tmp_path / f"changing-{scenario}"
        assert newest_checkpoint(changing).name == "00000006"
        check_same(tmp_path / f"straight-{scenario}", changing)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_every_rank_receives_the_rows_of_all_in_their_order(
    world: int, warm_python: WarmPython, tmp_path: Path
) -> None:
    done = run_ranks(warm_python, world, [str(Path(__file__).with_name("e2e_batches.py")), str(tmp_path)])
    assert done.returncode == 0, done.stderr
    for rank in range(world):
        found = load_state(tmp_path / f"rank-{rank}")
        error = found.pop("error")["text"]
        assert "the columns of a round differ between processes: process 0: [('scores'" in error
        for name, seen in found.items():
            batch = make_batch(int(name[0]))
            expected = {"tokens": batch.tokens, "mask": batch.mask, "action_mask": batch.action_mask}
            expected |= {"ended": batch.ended, **batch.columns}
            assert seen.keys() == expected.keys()
            for key, array in expected.items():
                assert seen[key].dtype == array.dtype
                assert seen[key].equal(array), f"rank {rank}, {name}, {key}"


@pytest.mark.slow
def test_the_size_of_pickled_messages_does_not_depend_on_the_number_of_rows(
    warm_python: WarmPython, tmp_path: Path
) -> None:
    done = run_ranks(warm_python, 2, [str(Path(__file__).with_name("e2e_objects.py")), str(tmp_path)])
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in range(2):
        for name, (few, many) in json.loads((tmp_path / f"rank-{rank}.json").read_text()).items():
            assert 0 < many < few + 32, f"rank {rank}, {name}: {few} bytes, and {many} for four times the rows"
