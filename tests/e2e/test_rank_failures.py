"""Tests that no rank outlives another one that hangs or is killed, and that its error says why."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_processes import run_ranks, run_two_ranks
from warm_python import WarmPython

LONGEST_S = 5.0
"""How long ranks may outlive one that is killed, without the time in which they wait for a core of a busy machine."""
SCHEDSTAT = Path("/proc/self/schedstat")
SCRIPT = str(Path(__file__).with_name("rank_failures.py"))


@contextlib.contextmanager
def noting_delays(folder: Path) -> Iterator[dict[Path, list[float]]]:
    """Note how long the survivors of a failure have waited for a core, which Linux counts, until they end."""
    delays: dict[Path, list[float]] = {}
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            for file in folder.glob("pid-*") if (folder / "failed").exists() else ():
                with contextlib.suppress(OSError):  # the process has ended
                    counts = Path("/proc", file.read_text(), "schedstat").read_text().split()
                    delays.setdefault(file, []).append(int(counts[1]) / 1e9)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield delays
    finally:
        over.set()
        thread.join()


def test_a_rank_that_hangs_ends_the_run_and_the_error_names_its_function(
    warm_python: WarmPython, tmp_path: Path
) -> None:
    done = run_two_ranks(warm_python, [SCRIPT, "hang", str(tmp_path)])
    ended = time.monotonic()
    assert "longer than run.timeout_s = 2 s" in done.stdout, done.stderr
    assert "  rank 0: step 1, waits for the other ranks in " in done.stdout
    assert "  rank 1: step 1, in Failing.hang (e2e/rank_failures.py:" in done.stdout
    assert "RanksError: rank 1 is ended: a rank has waited" in done.stderr
    assert ended - float((tmp_path / "failed").read_text()) < 40  # it hangs for 60 s


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
    with noting_delays(tmp_path) as delays:
        done = run_ranks(warm_python, world, [SCRIPT, moment, str(tmp_path), str(killed), shard])
        seconds = time.monotonic() - float((tmp_path / "failed").read_text())
    assert done.stdout.count("another process has ended; see its own error") == world - 1, done.stderr
    assert "Traceback" not in done.stderr
    assert len(delays) == world - 1 or not SCHEDSTAT.exists()
    delay = max((counts[-1] - counts[0] for counts in delays.values()), default=0.0)
    print(f"{moment}, {shard}: {seconds:.1f} s, of which {delay:.1f} s without a core")
    assert seconds - delay < LONGEST_S
