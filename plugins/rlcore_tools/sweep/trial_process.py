"""The process of one trial: `rlcore train` with the trial's configuration, and its end if the sweep's process dies.

    python -m rlcore_tools.sweep.trial_process trials/00003.yaml

Standard input is a pipe that the sweep's process holds open. At its end, after a crash or SIGKILL of the sweep, the run
is asked to finish its step and to save, as by SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def follow_sweep() -> None:
    """Send SIGTERM to this process when the process of the sweep has ended."""
    pipe = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # processes of the run do not read from the pipe
    os.close(nothing)
    threading.Thread(target=_follow, args=(pipe,), name="sweep", daemon=True).start()


def _follow(pipe: int) -> None:
    while os.read(pipe, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """Train, and return the exit code of `rlcore train`."""
    follow_sweep()
    from rlcore.cli import main as rlcore

    return rlcore(["train", *sys.argv[1:], "--no-progress"])


if __name__ == "__main__":
    sys.exit(main())
