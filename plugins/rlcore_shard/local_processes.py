"""Start the processes of a run on this machine through torch's elastic launcher, and report their first error once.

A process that fails writes its error to the file that the launcher names. Where several fail, as when one does and the
others lose it, the earliest is printed, and its exit code is that of the command.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlcore.cli import STARTED
from rlcore.safe_text import write

PATIENCE_S = 10**5
"""How long the processes may take to finish their step after Ctrl-C; a second one stops them at once."""


def start(processes: int, words: Sequence[str]) -> int:
    """Run `rlcore *words` in several processes, one per GPU if there are GPUs, and return the exit code.

    Ctrl-C and SIGTERM are passed on to the processes, which finish their step, save and exit.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    threads = str(max(1, (os.cpu_count() or 1) // processes))
    before = {name: signal.getsignal(getattr(signal, name)) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")}
    logging.disable(logging.CRITICAL)  # the launcher reports the ends of processes with tracebacks of its own
    os.environ.update({STARTED: "1", "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads)})
    failed: dict[int, int] = {}
    with tempfile.TemporaryDirectory(prefix="rlcore-ranks-") as folder:
        config = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=processes, logs_specs=DefaultLogsSpecs(log_dir=folder),
            run_id=uuid.uuid4().hex, rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0,
            shutdown_timeout=PATIENCE_S,
        )  # fmt: skip
        try:
            elastic_launch(config, sys.executable)("-m", "rlcore", *words)
        except SignalException:
            pass  # the processes have ended, with an error or without
        except ChildFailedError as error:
            failed = {rank: failure.exitcode for rank, failure in error.failures.items()}
        finally:
            for name, handler in before.items():
                signal.signal(getattr(signal, name), handler)
            logging.disable(logging.NOTSET)
            del os.environ[STARTED]
        return _report(_errors(Path(folder)), failed)


def _errors(folder: Path) -> list[dict[str, Any]]:
    """Return the errors that processes recorded, in the order of time."""
    found = [json.loads(file.read_text(encoding="utf-8")) for file in folder.rglob("error.json")]
    return sorted(found, key=lambda error: int(error["time_ns"]))


def _report(errors: Sequence[dict[str, Any]], failed: dict[int, int]) -> int:
    for rank, code in failed.items():
        if code < 0 and -code not in (signal.SIGTERM, signal.SIGINT):
            name = signal.Signals(-code).name
            hint = ", as for lack of memory" if name == "SIGKILL" else ""
            write(f"rlcore: rank {rank} was ended by {name}{hint}", sys.stderr)
    if errors:
        write(errors[0]["message"], sys.stderr)
        return int(errors[0]["code"])
    return 1 if failed else 0
