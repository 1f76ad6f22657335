"""Do something in a process of its own, or in two that find each other, and bring back what it returned."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from rlcore.testing.law import LawBroken

TIMEOUT_S = 180.0
TIME_LIMIT_S = 600.0
"""No law comes near it; a trainer that never yields would go on for ever."""


def call_anew(function: str, arguments: Mapping[str, Any], *, what: str) -> Any:
    """Call `module:function(**arguments)` in a fresh interpreter and return what it returns; both ways as JSON.

    Args:
        function: reference; the module must be importable there, as everything on this process's path is.
        arguments: plain values.
        what: says in messages what is being done.

    Raises:
        LawBroken: the process failed or took longer than TIMEOUT_S; the message ends with the last it said.
    """
    return _call([sys.executable], function, arguments, what)


def call_on_two_ranks(function: str, arguments: Mapping[str, Any], *, what: str) -> Any:
    """Call a function as `call_anew` does, in two processes on the CPU, and return what it returns on rank 0."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "--no-python"]
    return _call([*launcher, sys.executable], function, arguments, what, ACCELERATE_USE_CPU="true")


def _call(launcher: list[str], function: str, arguments: Mapping[str, Any], what: str, **environment: str) -> Any:
    with tempfile.TemporaryDirectory(prefix="rlcore-law-") as folder:
        given, returned = Path(folder) / "given.json", Path(folder) / "returned.json"
        given.write_text(json.dumps(arguments), encoding="utf-8")
        said = _run([*launcher, "-m", __name__, function, str(given), str(returned)], environment, what)
        if not returned.exists():  # what is on disk decides: a rank may be aborted after all is done
            raise LawBroken(f"{what}: the process failed; it said last:\n{_last(said)}")
        return json.loads(returned.read_text(encoding="utf-8"))


def _run(command: list[str], environment: Mapping[str, str], what: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC")}
    path = os.pathsep.join(folder for folder in sys.path if folder)
    process = subprocess.Popen(  # noqa: S603  the command is this module's own
        command, env={"OMP_NUM_THREADS": "1", **kept, "PYTHONPATH": path, **environment}, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise LawBroken(f"{what}: not over after {TIMEOUT_S:.0f} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return said


def _last(said: str, lines: int = 15) -> str:
    return "\n".join(f"  {line}" for line in said.strip().splitlines()[-lines:])


def main() -> None:
    """Be the process: read the arguments, call, and have rank 0 write what came of it."""
    function, given, returned = sys.argv[1:]
    module, _, name = function.partition(":")
    result = getattr(importlib.import_module(module), name)(**json.loads(Path(given).read_text(encoding="utf-8")))
    if os.environ.get("RANK", "0") == "0":
        Path(returned).write_text(json.dumps(result), encoding="utf-8")


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Put the global generators back, and have float32 in between; what was not imported before, nobody has set."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    with contextlib.ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        if numpy is not None:
            stack.callback(numpy.random.set_state, numpy.random.get_state())
        if torch is not None:
            stack.callback(torch.set_rng_state, torch.get_rng_state())
            stack.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(torch.float32)
        yield


@contextlib.contextmanager
def bounded(limit_s: float = TIME_LIMIT_S) -> Iterator[None]:
    """End the block where it takes longer, if a signal can: in the main thread, on Unix, beside no alarm of others.

    Raises:
        LawBroken: from wherever the block was.
    """
    alone = hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread()
    if not alone or signal.getitimer(signal.ITIMER_REAL)[0] > 0:
        yield
        return

    def ring(_: int, frame: FrameType | None) -> None:
        where = "" if frame is None else f", then in {frame.f_code.co_qualname} of {frame.f_code.co_filename}"
        raise LawBroken(f"not over after {limit_s:g} s{where}: does every loop of it yield or end?")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


if __name__ == "__main__":
    main()
