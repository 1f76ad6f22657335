"""Tests that no rank outlives another one that hangs or is killed, and that its error says why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from depths import by_day
from e2e_processes import run_ranks, run_two_ranks
from warm_python import WarmPython

SCRIPT = str(Path(__file__).with_name("rank_failures.py"))


@pytest.mark.slow
def test_a_rank_that_hangs_ends_the_run_and_the_error_names_its_function(
    warm_python: WarmPython, tmp_path: Path
) -> None:
    done = run_two_ranks(warm_python, [SCRIPT, "hang", str(tmp_path)])
    assert "longer than run.timeout_s = 10 s" in done.stdout, done.stderr
    assert "  rank 0: step 1, waits for the other ranks in " in done.stdout
    assert "  rank 1: step 1, in Failing.hang (e2e/rank_failures.py:" in done.stdout
    assert "RanksError: rank 1 is ended: a rank has waited" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "world", "killed", "shard"),
    by_day(
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
        ["rollout", ("backward", 3, 0, "none"), ("checkpoint", 2, 0, "fsdp")],
    ),
)
def test_a_rank_that_is_killed_ends_the_others_long_before_the_limit_with_a_ranks_error(
    warm_python: WarmPython, tmp_path: Path, moment: str, world: int, killed: int, shard: str
) -> None:
    done = run_ranks(warm_python, world, [SCRIPT, moment, str(tmp_path), str(killed), shard])
    named = re.findall(
        rf"another process has ended: .*rank {killed} \(last report: (.*?)\).*; see its own", done.stdout
    )
    assert len(named) == world - 1, done.stdout + done.stderr
    noted = (
        "building the run, ",
        "step 1, ",
        "the checkpoint of step 1, ",
        "the evaluation after step 1, ",
    )  # a report is up to a second old
    assert all(report.startswith(noted) for report in named), named
    assert "Traceback" not in done.stderr
