"""Tests that no rank outlives another one that hangs or is killed, and that its error says why."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from e2e_processes import run_ranks, run_two_ranks
from warm_python import WarmPython

LONGEST_S = 20.0
"""How long ranks may outlive one that is killed: a second or two, and more on a busy machine."""
SCRIPT = str(Path(__file__).with_name("rank_failures.py"))


def test_a_rank_that_hangs_ends_the_run_and_the_error_names_its_function(
    warm_python: WarmPython, tmp_path: Path
) -> None:
    begun = time.monotonic()
    done = run_two_ranks(warm_python, [SCRIPT, "hang", str(tmp_path)])
    assert time.monotonic() - begun < 50, done.stderr
    assert "longer than run.timeout_s = 2 s" in done.stdout, done.stderr
    assert "  rank 0: step 1, waits for the other ranks in " in done.stdout
    assert "  rank 1: step 1, in Failing.hang (e2e/rank_failures.py:" in done.stdout
    assert "RanksError: rank 1 is ended: a rank has waited" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "world", "killed", "shard"),
    [
        ("rollout", 2, 1, "none"),
        ("forward", 2, 1, "none"),
        ("backward", 3, 0, "none"),
        ("checkpoint", 2, 0, "none"),
        ("evaluation", 2, 1, "none"),
        ("forward", 2, 1, "fsdp"),
        ("backward", 3, 0, "fsdp"),
        ("checkpoint", 2, 0, "fsdp"),
    ],
)
def test_a_rank_that_is_killed_soon_ends_the_others_with_a_ranks_error(
    warm_python: WarmPython, tmp_path: Path, moment: str, world: int, killed: int, shard: str
) -> None:
    done = run_ranks(warm_python, world, [SCRIPT, moment, str(tmp_path), str(killed), shard])
    seconds = time.monotonic() - float((tmp_path / "failed").read_text())
    assert done.stdout.count("another process has ended; see its own error") == world - 1, done.stderr
    assert "Traceback" not in done.stderr
    assert seconds < LONGEST_S
    print(f"{moment}, {shard}: {seconds:.1f} s")
