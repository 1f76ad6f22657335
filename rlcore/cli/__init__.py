"""The command line: imports no torch, so that it starts fast, and works even if every plugin is broken."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rlcore.cli.parser import parse
from rlcore.errors import PluginError, RLCoreError, io_remedy
from rlcore.safe_text import write

INTERRUPTED = 130
STARTED, ERROR_FILE = "RLCORE_STARTED", "TORCHELASTIC_ERROR_FILE"
"""Variables of a process that a command started as one of several: that it has, and the file for an error."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 success, 1 reported error, 2 usage error, 130 interrupted."""
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):  # plugins may print characters outside its encoding
        sys.stdout.reconfigure(errors="backslashreplace")
    if argv is None:
        sys.excepthook = _write_traceback
    try:
        words = sys.argv[1:] if argv is None else argv
        if words[:1] == ["--complete"]:
            from rlcore.cli.parser import complete

            print(*complete(os.environ), sep="\n")
            return 0
        run, arguments = parse(words)
        arguments.words = list(words)
        code = run(arguments)
        sys.stdout.flush()
        if not isinstance(code, int):
            raise PluginError(f"the command returned {code!r:.80}; it must return an exit code, 0 for success")
    except RLCoreError as error:
        if _is_debugged():
            raise
        _show(f"{type(error).__name__}: {error}", 1)
        return 1
    except KeyboardInterrupt:
        _show("rlcore: interrupted", INTERRUPTED)
        return INTERRUPTED
    except (ImportError, OSError) as error:  # such as a package that is not installed, and a full disk
        return _report(error)
    return code


def _open_closed_streams() -> None:
    """Discard what is written to a standard stream that the process was started without, as by `rlcore ... >&-`."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123  open until the end


def _write_traceback(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
    import traceback

    _show("".join(traceback.format_exception(kind, error, frames)).rstrip(), 1)


def _show(error: str, code: int) -> None:
    """Print an error, or leave it to the command that started this process as one of several."""
    if not {STARTED, ERROR_FILE} <= os.environ.keys():
        write(error, sys.stderr)
        return
    found = {"message": error, "timestamp": int(time.time()), "time_ns": time.time_ns(), "code": code}
    Path(os.environ[ERROR_FILE]).write_text(json.dumps(found), encoding="utf-8")


def _is_debugged() -> bool:
    return os.environ.get("RLCORE_DEBUG", "") not in {"", "0"}


def _report(error: ImportError | OSError) -> int:
    """Print an error of the system with a remedy, and return the exit code."""
    from rlcore.components import describe_error

    if isinstance(error, BrokenPipeError):  # the reader of the pipe, such as head, has exited
        _discard_output()
        return 0
    if _is_debugged():
        raise error
    if isinstance(error, ImportError):
        package = (error.name or "").partition(".")[0]
        remedy = f"pip install {package}" if package not in {"", "rlcore"} else "RLCORE_DEBUG=1 shows the traceback"
        _show(f"{describe_error(error)}; {remedy} (rlcore doctor lists the packages that are missing)", 1)
        return 1
    try:
        sys.stdout.flush()
    except OSError:  # it is the output that cannot be written
        _discard_output()
    _show(f"{describe_error(error)}: {io_remedy(error)}", 1)
    return 1


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
