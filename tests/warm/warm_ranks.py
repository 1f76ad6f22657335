"""Ranks of a process group in preloaded Python processes, and calls of the conformance kit in such processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from torch.distributed import TCPStore
from warm_python import Done, WarmPython

from rlcore_testing.law import LawBroken
from rlcore_testing.rig import isolate

TORCHRUN = "torch.distributed.run"
WATCHED = {f"rlcore_testing.rig.probes:{name}" for name in ("watch_import", "read_options", "run_help")}
"""Functions of the kit that observe what an import does to a new interpreter."""


def run_ranks(
    warm_python: WarmPython,
    world: int,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    timeout_s: float,
    local: int = 0,
) -> list[Done]:
    """Run a script or module in `world` processes with torchrun's variables; this process hosts their store.

    With `local`, the variables are those of machines with so many processes each.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    agent = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(local or world),
    }  # fmt: skip
    ranks = [
        {**environment, **agent, "RANK": str(rank), "LOCAL_RANK": str(rank % (local or world))} for rank in range(world)
    ]
    return warm_python.run_together(arguments, cwd=Path.cwd(), environments=ranks, timeout_s=timeout_s)


def forking(
    warm_python: WarmPython, start: Callable[[list[str], Mapping[str, str], str], str]
) -> Callable[[list[str], Mapping[str, str], str], str]:
    """Return a function that forks what `start` of the kit runs, except for functions that watch imports."""

    def run(command: list[str], environment: Mapping[str, str], what: str) -> str:
        arguments = command[-5:]  # -m rlcore_testing.rig.isolate FUNCTION INPUTS OUTPUT
        if arguments[2] in WATCHED:
            return start(command, environment, what)
        path = os.pathsep.join(folder for folder in sys.path if folder)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC")}
        given = {"OMP_NUM_THREADS": "1", **kept, "PYTHONPATH": path, **environment}
        try:
            if TORCHRUN in command:
                done = run_ranks(warm_python, 2, arguments, environment=given, timeout_s=isolate.TIMEOUT_S)
            else:
                done = [warm_python.run(arguments, cwd=Path.cwd(), environment=given, timeout_s=isolate.TIMEOUT_S)]
        except subprocess.TimeoutExpired:
            raise LawBroken(f"{what}: not finished after {isolate.TIMEOUT_S:.0f} s") from None
        return "".join(each.stdout + each.stderr for each in done)

    return run
