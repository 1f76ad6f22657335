"""Tests of freed memory: it is returned to the system, unless the environment configures malloc otherwise."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

MIB = 1 << 20
PROGRAM = """
import sys
from pathlib import Path
from rlcore_transformers.models.speed.activations import hand_back_freed

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

if sys.argv[1] == "yes":
    hand_back_freed()
largest = bytearray(30 << 20)
del largest  # from now on glibc keeps blocks below 30 MiB to itself
before = resident()
blocks = [bytearray(b"1") * (8 << 20) for _ in range(8)]
last = blocks.pop()
blocks.clear()
print(resident() - before)
"""


def kept(called: str, **environment: str) -> int:
    """Return the bytes a process still uses after it freed 56 MiB and kept 8 MiB."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, called],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.nightly
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about glibc's malloc")
def test_freed_memory_goes_back_to_the_system() -> None:
    assert kept("no") > 60 * MIB  # guard: without the call, memory would be retained
    assert kept("yes") < 12 * MIB


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about glibc's malloc")
def test_a_malloc_threshold_of_the_environment_is_kept() -> None:
    assert kept("yes", MALLOC_MMAP_THRESHOLD_=str(64 * MIB), MALLOC_TRIM_THRESHOLD_=str(512 * MIB)) > 30 * MIB
