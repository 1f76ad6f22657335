"""Run code of a policy in a process with limits and, where the system allows it, without a network.

The limits keep mistakes and runaway code from harming the run; they are no protection from an attacker. The code reads,
changes and deletes what the user of the run can, and within its time it can fill the disk with several files.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from rlcore.errors import PluginError
from rlcore.logging import get_logger

log = get_logger("sandbox")
RUNNER = Path(__file__).with_name("code_runner.py")
NAMESPACES = (
    "unshare", "--user", "--map-current-user", "--net", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc",
)  # fmt: skip
NOBODY = 65534
PROBE_S = 20.0
_PROBE = {"memory_mb": 512, "file_mb": 1, "open_files": 64, "processes": 16}
MIB = 2**20


@attrs.frozen
class Confinement:
    """How tests are started on this system.

    Attributes:
        command: what stands in front of the command of a test.
        user: the user id of the test; None: that of the run.
        problem: why there are no namespaces; empty if there are.
        limits_processes: the limit of processes has an effect. It counts those in the namespace, and has no effect for
            root.
    """

    command: tuple[str, ...] = ()
    user: int | None = None
    problem: str = ""
    limits_processes: bool = False


@attrs.frozen
class Ran:
    """What a process of a test did.

    Attributes:
        output: its standard output.
        errors: the end of its standard error.
        status: its exit code, negative for a signal; None if it was ended at the time limit.
        is_passed: the statement of the test was reached and raised nothing.
    """

    output: str
    errors: str
    status: int | None
    is_passed: bool


def confine(python: str, *, isolate: bool) -> Confinement:
    """Return how tests can be confined best, which is tried out with an empty program.

    Args:
        python: the interpreter.
        isolate: try namespaces.

    Raises:
        PluginError: the interpreter does not start.
    """
    users = [NOBODY, None] if hasattr(os, "geteuid") and os.geteuid() == 0 else [None]
    problem = "isolation is 'none'"
    if isolate:
        problem = "the program unshare of util-linux is not installed"
        if shutil.which(NAMESPACES[0]):
            for user in users:
                problem = _tried(python, Confinement(NAMESPACES, user))
                if not problem:
                    return Confinement(NAMESPACES, user, limits_processes=user is not None or users == [None])
    for user in users:
        refused = _tried(python, Confinement((), user))
        if not refused:
            return Confinement((), user, problem)
    raise PluginError(f"code_tests.python = {python!r}: the interpreter does not start: {refused}")


def _tried(python: str, confinement: Confinement) -> str:
    """Return why an empty program cannot be run in this way, or an empty string."""
    try:
        ran = run("", "assert 1", python=python, confinement=confinement, limits=_PROBE, timeout_s=PROBE_S)
    except OSError as error:
        return str(error)
    return (
        "" if ran.is_passed else ran.errors.strip().splitlines()[-1] if ran.errors.strip() else f"status {ran.status}"
    )


def run(
    code: str,
    test: str | None,
    *,
    python: str,
    confinement: Confinement,
    limits: Mapping[str, int],
    timeout_s: float,
    text: str = "",
) -> Ran:
    """Run code, and then a statement that tests it, in a new process and an empty folder.

    Args:
        code: a Python program.
        test: the statement; None if the output is the test.
        python: the interpreter.
        confinement: how it is started.
        limits: `memory_mb`, `file_mb`, `open_files` and `processes`.
        timeout_s: seconds after which the process and all it started are ended.
        text: its standard input.
    """
    token = secrets.token_hex(16)
    processes = limits["processes"] if confinement.limits_processes else 0
    numbers = {**limits, "processes": processes, "cpu_s": int(timeout_s) + 2}
    job = json.dumps({"code": code, "test": test, "token": token, "limits": numbers}).encode()
    with tempfile.TemporaryDirectory(prefix="rlcore-code-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if confinement.user is not None:
            os.chown(folder, confinement.user, confinement.user)
        (folder / "in").write_bytes(text.encode(errors="replace"))
        work = folder / "work"
        work.mkdir()
        if confinement.user is not None:
            os.chown(work, confinement.user, confinement.user)
        files = [(folder / each).open(mode) for each, mode in (("in", "rb"), ("out", "w+b"), ("err", "w+b"))]
        try:
            status, said = _start(python, confinement, job, files, work, timeout_s)
            output, errors = _read(files[1], limits["file_mb"] * MIB), _read(files[2], MIB)
        finally:
            for file in files:
                file.close()
    return Ran(output, errors[-2000:], status, said == token.encode())


def _start(
    python: str, confinement: Confinement, job: bytes, streams: Sequence[Any], work: Path, timeout_s: float
) -> tuple[int | None, bytes]:
    """Start the process, wait for it, and return its exit code and what it wrote to the channel."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [*confinement.command, python, "-P", "-s", "-B", str(RUNNER), str(theirs.fileno())]
        environment = {
            "PATH": os.defpath, "HOME": str(work), "TMPDIR": str(work), "LANG": "C.UTF-8", "PYTHONHASHSEED": "0",
            "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        }  # fmt: skip
        user: dict[str, Any] = {}
        if confinement.user is not None:
            user = {"user": confinement.user, "group": confinement.user, "extra_groups": []}
        process = subprocess.Popen(  # noqa: S603  which is what this module is for
            command, stdin=streams[0], stdout=streams[1], stderr=streams[2], cwd=work, env=environment,
            start_new_session=True, pass_fds=[theirs.fileno()], **user,
        )  # fmt: skip
        try:
            theirs.close()
            ours.settimeout(timeout_s)
            with contextlib.suppress(OSError):  # it ended before it read everything
                ours.sendall(job)
                ours.shutdown(socket.SHUT_WR)
            status: int | None = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        ours.setblocking(False)
        said = b""
        with contextlib.suppress(OSError):
            said = ours.recv(4096)
    return status, said


def _read(file: Any, most: int) -> str:
    file.seek(0)
    return str(file.read(most).decode(errors="replace"))


def warn_of_gaps(confinement: Confinement, *, isolate: bool) -> None:
    """Log, once for a run, what the system does not allow."""
    if isolate and confinement.problem:
        log.warning(
            "code_tests: tests can reach the network, and processes that they leave may go on; there are no namespaces",
            because=confinement.problem,
        )  # fmt: skip
    if not confinement.limits_processes:
        reason = "run the training as another user than root" if os.geteuid() == 0 else "it needs namespaces"
        log.warning("code_tests: the number of processes of a test is not limited", because=reason)
    if sys.platform != "linux":
        log.warning("code_tests: this system does not limit the memory of a process")
