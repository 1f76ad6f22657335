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


EXITS_WHILE_IT_COLLECTS_GARBAGE = """
import time, weakref
import torch
from rlcore.ranks.watchdog import Watchdog

class Owner: ...

class Slow:
    def __del__(self):
        numbers = torch.ones(600, 600)
        for _ in range(200):
            numbers = torch.mm(numbers, numbers)

watchdog, owners = Watchdog(rank=0, world=2, timeout_s=1e-4), [Owner()]
weakref.finalize(owners[0], watchdog.stop)

def report():
    owners.clear()
    Slow()
    return ""

watchdog._report = report
time.sleep(0.1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("script", [EXITS_WHILE_IT_REPORTS, EXITS_WHILE_IT_COLLECTS_GARBAGE])
def test_a_process_that_exits_while_the_thread_works_ends_as_usual(script: str) -> None:
    """Without a wait for the thread, three in four of the first processes are aborted, and all of the second."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    for _ in range(4):
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
