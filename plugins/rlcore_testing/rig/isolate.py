"""Calls in a new process or on two ranks, and isolation of global state and time within this process."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta, tzinfo
from pathlib import Path
from types import FrameType
from typing import Any

from rlcore.child import run
from rlcore_testing.law import LawBroken

TIMEOUT_S = 180.0
ABORTED = ("Fatal Python error: Aborted", "terminate called without an active exception")
"""What a process prints that compiled code aborts, as rarely happens to a rank of torch's process groups; the call is
made once more then. No error that Python raises ends so."""
TIME_LIMIT_S = 600.0
"""Time limit of a law, far above what any law takes; it ends a trainer that never yields."""
AHEAD = timedelta(days=410, hours=13, minutes=17, seconds=11)
"""How far `at_another_time` sets the clock ahead: to another year, month, day of the month and of the week, hour and
minute, whatever the date is."""
MOST_COPIED = 100_000
"""Size in bytes up to which a file of the working folder is copied for a block that is watched."""
FILES, ROOT_LOGGER = "the working folder", "the root logger"
GENERATORS = tuple(f"the global random state of {name}" for name in ("python", "numpy", "torch"))


def call_in_new_process(function: str, arguments: Mapping[str, object], *, what: str) -> Any:
    """Call `module:function(**arguments)` in a new interpreter and return the result; values are passed as JSON.

    Args:
        function: reference; the module must be importable from this process's sys.path.
        arguments: plain values.
        what: description of the call for messages.

    Raises:
        LawBroken: the process failed or took longer than TIMEOUT_S; the message ends with the process's last output.
    """
    return _call([sys.executable], function, arguments, what)


def call_on_two_ranks(function: str, arguments: Mapping[str, object], *, what: str) -> Any:
    """Call a function as `call_in_new_process` does, on two ranks on the CPU, and return the result of rank 0."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "--no-python"]
    return _call([*launcher, sys.executable], function, arguments, what, ACCELERATE_USE_CPU="true")


def _call(launcher: list[str], function: str, arguments: Mapping[str, object], what: str, **environment: str) -> Any:
    with tempfile.TemporaryDirectory(prefix="rlcore-law-") as folder:
        inputs, result = Path(folder) / "arguments.json", Path(folder) / "result.json"
        inputs.write_text(json.dumps(arguments), encoding="utf-8")
        for _ in range(2):
            output = _run([*launcher, "-m", __name__, function, str(inputs), str(result)], environment, what)
            if result.exists() or not any(said in output for said in ABORTED):
                break
        if not result.exists():  # not the exit code: a rank may be aborted after rank 0 has written the result
            raise LawBroken(f"{what}: the process failed; its last output:\n{_last(output)}")
        return json.loads(result.read_text(encoding="utf-8"))


def _run(command: list[str], environment: Mapping[str, str], what: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC")}
    path = os.pathsep.join(folder for folder in sys.path if folder)
    variables = {"OMP_NUM_THREADS": "1", **inherited, "PYTHONPATH": path, **environment}
    ended = run(command, env=variables, limit_s=TIMEOUT_S)
    if ended.code is None:
        raise LawBroken(f"{what}: not finished after {TIMEOUT_S:.0f} s")
    return ended.output + ended.errors


def _last(output: str, lines: int = 40) -> str:
    """Return the end of an output, without the list of compiled modules that ends the traceback of a crash."""
    said = [line for line in output.strip().splitlines() if not line.startswith("Extension modules:")]
    return "\n".join(f"  {line}" for line in said[-lines:])


def main() -> None:
    """Read the arguments, call the function and write its result on rank 0; runs in the new process."""
    function, inputs, output = sys.argv[1:]
    module, _, name = function.partition(":")
    result = getattr(importlib.import_module(module), name)(**json.loads(Path(inputs).read_text(encoding="utf-8")))
    if os.environ.get("RANK", "0") == "0":
        Path(output).write_text(json.dumps(result), encoding="utf-8")


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Use float32 in the block; restore global generators and the default dtype of imported modules after it."""
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
def undisturbed(what: str, *, but: Collection[str] = ()) -> Iterator[None]:
    """Require the block to leave the process as it is, in a working folder that contains what the present one does.

    Compared are FILES in that folder, the GENERATORS, the ROOT_LOGGER, and torch's default dtype and grad mode; not
    those of modules that the block imports first.

    Args:
        what: what is called in the block, for the message.
        but: what may change; with FILES, the working folder stays the present one.

    Raises:
        LawBroken: something changed.
    """
    home = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="rlcore-law-") as folder:
        try:
            present = {} if FILES in but else _provide(home, Path(folder))
            if FILES not in but:
                os.chdir(folder)
            _draw()  # so that a generator that was seeded before, and is seeded alike in the block, changes
            before = _process_state()
            yield
            after = _process_state()
            files = sorted(name for name, written in _entries(Path(folder)).items() if present.get(name) != written)
        finally:
            os.chdir(home)
    changed = [name for name in before if name not in but and before[name] != after[name]]
    if files:
        raise LawBroken(f"{what} writes {', '.join(files[:3])} into the working folder; write nothing, or to a place "
                        "that the user chooses")  # fmt: skip
    if changed:
        raise LawBroken(
            f"{what} changes {' and '.join(changed)}, on which everything else in the process depends; use a generator "
            "of its own, such as random.Random(seed), and restore what is set for a while"
        )


def _provide(home: Path, folder: Path) -> dict[str, int]:
    """Copy small files of `home` to `folder` and link the rest, for options with relative paths; return the entries."""
    for path in home.iterdir():
        with contextlib.suppress(OSError):  # where the user may read it not, or make no links
            if path.is_file() and path.stat().st_size <= MOST_COPIED:
                shutil.copy2(path, folder)
            else:
                (folder / path.name).symlink_to(path)
    return _entries(folder)


def _entries(folder: Path) -> dict[str, int]:
    """Return the name of each entry of a folder, with the time at which it was written, in ns."""
    return {path.name: path.lstat().st_mtime_ns for path in folder.iterdir()}


def _draw() -> None:
    """Draw a number from each of the GENERATORS."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    random.random()  # noqa: S311  no secret
    if numpy is not None:
        numpy.random.random()
    if torch is not None:
        torch.rand(())


def _process_state() -> dict[str, Any]:
    """Return what `undisturbed` compares, without what modules have that are not imported yet."""
    numpy, torch, root = sys.modules.get("numpy"), sys.modules.get("torch"), logging.getLogger()
    state: dict[str, Any] = {GENERATORS[0]: random.getstate(), ROOT_LOGGER: (root.level, tuple(root.handlers))}
    if numpy is not None:
        state[GENERATORS[1]] = repr([each.tolist() if hasattr(each, "tolist") else each
                                     for each in numpy.random.get_state()])  # fmt: skip
    if torch is not None:
        state[GENERATORS[2]] = torch.get_rng_state().tolist()
        state["torch's default dtype"], state["torch's grad mode"] = torch.get_default_dtype(), torch.is_grad_enabled()
    return state


@contextlib.contextmanager
def as_second_rank() -> Iterator[None]:
    """Set the environment variable RANK in the block to that of a second process.

    With `WORLD_SIZE` or `LOCAL_RANK` too, `accelerate.PartialState` would wait for the first one.
    """
    before = os.environ.get("RANK")
    os.environ["RANK"] = "1"
    try:
        yield
    finally:
        os.environ.pop("RANK")
        os.environ.update({} if before is None else {"RANK": before})


def threads_left(before: Collection[threading.Thread], limit_s: float) -> list[str]:
    """Return the names of threads that are not among those `before` and are still alive after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while (more := set(threading.enumerate()) - set(before)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return sorted(thread.name for thread in more)


@contextlib.contextmanager
def at_another_time() -> Iterator[None]:
    """Set the wall clock ahead in the block: that of `time` and `datetime`, also where a module has imported a name.

    Clocks that measure durations, such as `time.monotonic`, are not changed.
    """
    now, ahead = time.time, AHEAD.total_seconds()

    def of_now(convert: Callable[..., object]) -> Callable[..., object]:
        return lambda seconds=None: convert(now() + ahead if seconds is None else seconds)

    changed: dict[Any, object] = {
        now: lambda: now() + ahead,
        time.time_ns: lambda before=time.time_ns: before() + int(ahead) * 10**9,
        **{each: of_now(each) for each in (time.localtime, time.gmtime, time.ctime)},
        time.strftime: lambda text, when=None, write=time.strftime, at=time.localtime: write(
            text, at(now() + ahead) if when is None else when
        ),
        datetime: _later(datetime), date: _later(date),
    }  # fmt: skip
    by_id = {id(each): (each, other) for each, other in changed.items()}
    places = [
        (vars(module), name, *by_id[id(value)])
        for module_name, module in list(sys.modules.items())
        if module_name != __name__ and hasattr(module, "__dict__")
        for name, value in list(vars(module).items())
        if id(value) in by_id
    ]
    for namespace, name, _, other in places:
        namespace[name] = other
    try:
        yield
    finally:
        for namespace, name, before, _ in places:
            namespace[name] = before


def _later(base: Any) -> object:
    """Return a class that stands for `datetime.datetime` or `datetime.date` while the clock is set ahead."""

    class Likewise(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, base)

    def now(_: object, tz: tzinfo | None = None) -> Any:
        return base.now(tz) + AHEAD

    def today(_: object) -> object:
        there = datetime.now() + AHEAD  # noqa: DTZ005  local time, as of the methods that it replaces
        return there if issubclass(base, datetime) else there.date()

    def utcnow(_: object) -> object:
        return (datetime.now(UTC) + AHEAD).replace(tzinfo=None)

    methods = {"now": now, "today": today, "utcnow": utcnow} if hasattr(base, "now") else {"today": today}
    return Likewise(base.__name__, (base,), {name: classmethod(method) for name, method in methods.items()})


@contextlib.contextmanager
def default_signals() -> Iterator[None]:
    """Give SIGINT and SIGTERM their default effect in the block, also in processes that are started in it.

    A process inherits which signals are ignored: `nohup` in the background, and some CI servers, start their jobs with
    SIGINT ignored. Nothing changes outside the main thread.
    """
    defaults: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    is_main = threading.current_thread() is threading.main_thread()
    ignored = [number for number in defaults if is_main and signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, defaults[number])
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def time_limit(limit_s: float = TIME_LIMIT_S) -> Iterator[None]:
    """End the block after `limit_s` with SIGALRM.

    There is no limit outside the main thread, on Windows, or if another alarm is set.

    Raises:
        LawBroken: the block took longer; raised at the line that was executing.
    """
    available = hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread()
    if not available or signal.getitimer(signal.ITIMER_REAL)[0] > 0:
        yield
        return

    def ring(_: int, frame: FrameType | None) -> None:
        where = "" if frame is None else f", while in {frame.f_code.co_qualname} of {frame.f_code.co_filename}"
        raise LawBroken(f"not finished after {limit_s:g} s{where}: check that every loop yields or ends")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


if __name__ == "__main__":
    main()
