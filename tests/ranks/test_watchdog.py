"""Tests of the thread that reports what each rank is doing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from torch.distributed import TCPStore

EXITS_WHILE_IT_REPORTS = """
import time, weakref
from rlcore.ranks.watchdog import Watchdog

class Owner: ...

owner = Owner()
weakref.finalize(owner, Watchdog(rank=0, world=2, timeout_s=1e-4).stop)
time.sleep(0.1)
"""


@pytest.mark.slow
def test_a_process_that_exits_while_the_thread_reports_ends_as_usual() -> None:
    """Without a wait for the thread, about three in four of these processes are aborted."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    for _ in range(4):
        done = subprocess.run(
            [sys.executable, "-c", EXITS_WHILE_IT_REPORTS], env=environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
