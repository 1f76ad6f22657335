"""The reward `code_tests`: the share of a prompt's tests that the code in an output passes.

Each test is run in a process of its own. A statement passes if neither the code nor the statement raises;
it runs in the interpreter of the code, which could tamper with it. An input with an output passes if the code, run as a
program, exits with 0 and prints the output; white space at the ends of lines and empty lines at the end do not count.

Also in this file: run code of a policy in a process with limits and, where the system allows it, without a network.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import attrs

from rlcore.child import ChildProcess
from rlcore.errors import PluginError, RewardError
from rlcore.logging import get_logger
from rlcore_rewards.config import CodeTestsConfig
from rlcore_rewards.parts import Tally, after, last_block, refuse_misfit, refuse_missing, signature


@attrs.frozen
class CodeTest:
    """A test: a statement, or the standard input and the expected output of a program."""

    statement: str | None = None
    stdin: str = ""
    expected: str = ""


class CodeTests:
    """A reward function that runs the code in outputs on tests.

    Args:
        config: the options.

    Raises:
        ConfigError: the column cannot be named.
        PluginError: the system is Windows, or has no namespaces and `isolation: require` is set.
    """

    def __init__(self, config: CodeTestsConfig) -> None:
        if sys.platform == "win32":
            raise PluginError("reward 'code_tests' needs the limits of POSIX; Windows has none")
        self.config, self._python = config, config.python or sys.executable
        self._tally, self._untested = Tally("code_tests"), Tally("code_tests")
        self._calls: list[RunningTests] = []
        self.__signature__ = signature("code_tests.column", [config.column])
        if config.isolation == "require" and (self._confinement.problem or self._confinement.reaches_sockets):
            problem = self._confinement.problem
            lacking = (
                f"has no namespaces ({problem}); allow user" if problem else "cannot filter system calls; use Linux"
            )
            raise PluginError(
                f"code_tests.isolation = 'require': this system {lacking}"
                f"{' namespaces' if problem else ' on x86_64 or aarch64'}, or accept what the warning names with "
                "isolation: try"
            )

    def __call__(self, *, outputs: Sequence[str], **columns: Sequence[object]) -> list[float | None]:
        """Return a number in [0, 1] for each output, and None for a row without tests.

        Raises:
            RewardError: a row's tests have another form, or are too many.
        """
        refuse_missing([*self.__signature__.parameters.values()], columns)
        refuse_misfit(outputs, columns)
        column = self.config.column
        tests = [self._read(value, f"sample {i}, column '{column}'") for i, value in enumerate(columns[column])]
        jobs = [(self._code(output), test) for output, each in zip(outputs, tests, strict=True) for test in each]
        distinct = list(dict.fromkeys(jobs))
        passed = dict(zip(distinct, self._run(distinct), strict=True))
        late = f"tests were ended at code_tests.timeout_s = {self.config.timeout_s:g}, and count as failed"
        self._tally.add(len(jobs), {late: num} if (num := sum(passed[job] is None for job in jobs)) else {})
        none = f"outputs have no tests in the column '{column}', and get no reward"
        self._untested.add(len(outputs), {none: num} if (num := tests.count([])) else {})
        return [
            self._credit([passed[self._code(output), test] is True for test in each]) if each else None
            for output, each in zip(outputs, tests, strict=True)
        ]

    def close(self) -> None:
        """End the tests that a call in another thread still runs, and log how many took too long or do not exist."""
        for running in list(self._calls):  # threads leave the list meanwhile
            running.end()
        self._tally.close()
        self._untested.close()

    @cached_property
    def _confinement(self) -> Confinement:
        isolate = self.config.isolation != "none"
        found = confine(self._python, isolate=isolate)
        warn_of_gaps(found, isolate=isolate)
        return found

    def _run(self, jobs: Sequence[tuple[str, CodeTest]]) -> list[bool | None]:
        """Return whether each test passes; None if it took too long."""
        running = RunningTests()
        self._calls.append(running)
        with ThreadPoolExecutor(self.config.workers or os.cpu_count() or 1) as threads:
            try:
                return list(threads.map(partial(self._passes, running), jobs))
            finally:  # also at Ctrl-C, since the pool waits for the tests that run
                running.end()
                self._calls.remove(running)

    def _passes(self, running: RunningTests, job: tuple[str, CodeTest]) -> bool | None:
        code, test = job
        if not code.strip():
            return False
        names = ("memory_mb", "file_mb", "open_files", "processes")
        ran = run(
            code, test.statement, python=self._python, confinement=self._confinement,
            limits={name: getattr(self.config, name) for name in names}, timeout_s=self.config.timeout_s,
            text=test.stdin, running=running,
        )  # fmt: skip
        if ran.status is None:
            return None
        if test.statement is not None:
            return ran.is_passed
        return ran.status == 0 and _trimmed(ran.output) == _trimmed(test.expected)

    def _credit(self, passed: Sequence[bool]) -> float:
        return float(all(passed)) if self.config.credit == "all" else sum(passed) / len(passed)

    def _code(self, output: str) -> str:
        text = after(output, self.config.after)
        block = last_block(text) if self.config.find == "fenced" else None
        return text if block is None else block

    def _read(self, value: object, where: str) -> list[CodeTest]:
        """Return the tests of a row.

        Raises:
            RewardError: they have another form, or are too many.
        """
        if isinstance(value, str):
            value = _parsed(value)
        if value is None:
            return []
        if isinstance(value, Mapping) and {"inputs", "outputs"} <= value.keys():
            if "fn_name" in value:
                raise RewardError(
                    f"{where}: calls of {value['fn_name']!r} (fn_name) are no tests here; write statements such as "
                    "'assert f(1) == 2'"
                )
            if not all(isinstance(value[name], (list, tuple)) for name in ("inputs", "outputs")):
                raise RewardError(f"{where}: 'inputs' and 'outputs' are no lists; {FORMS}")
            if len(value["inputs"]) != len(value["outputs"]):
                counts = f"{len(value['inputs'])} inputs and {len(value['outputs'])} outputs"
                raise RewardError(f"{where}: has {counts}; give each input its output")
            pairs = zip(value["inputs"], value["outputs"], strict=True)
            value = [{"input": given, "output": expected} for given, expected in pairs]
        if not isinstance(value, (list, tuple)):
            raise RewardError(f"{where}: has the type {type(value).__name__}; {FORMS}")
        if len(value) > self.config.most_tests:
            raise RewardError(
                f"{where}: has {len(value)} tests, more than code_tests.most_tests = {self.config.most_tests}"
            )
        return [_test(each, f"{where}, test {k}") for k, each in enumerate(value)]


FORMS = (
    "tests are a list of statements such as 'assert f(1) == 2' or of mappings with 'input' and 'output', a mapping of "
    "lists 'inputs' and 'outputs', either of these as JSON, or one text of Python"
)


def _parsed(text: str) -> object:
    """Return the tests in a text: JSON, or else Python, which is one test."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return [text] if text.strip() else []
    return value if isinstance(value, (list, dict)) else [text]


def _test(value: object, where: str) -> CodeTest:
    if isinstance(value, str):
        try:
            compile(value, "test.py", "exec")
        except (SyntaxError, ValueError) as error:
            raise RewardError(f"{where}: {value[:80]!r} is no Python: {error}; {FORMS}") from error
        return CodeTest(statement=value)
    if isinstance(value, Mapping) and {"input", "output"} <= value.keys():
        if all(isinstance(each, str | int | float) for each in (value["input"], value["output"])):
            return CodeTest(stdin=str(value["input"]), expected=str(value["output"]))
        raise RewardError(f"{where}: {value!r:.80}: input and output must be texts or numbers")
    raise RewardError(f"{where}: {value!r:.80} is no test; {FORMS}")


def _trimmed(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    return lines


log = get_logger("sandbox")
RUNNER = Path(__file__).with_name("code_runner.py")
NAMESPACES = (
    "unshare", "--user", "--map-current-user", "--net", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc",
)  # fmt: skip
NOBODY = 65534
PROBE_S = 20.0
_PROBE_LIMITS = {"memory_mb": 512, "file_mb": 1, "open_files": 64, "processes": 16}
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
        sockets: whether tests may make sockets.
        reaches_sockets: whether tests can make them, because the kernel has no filter that refuses them.
    """

    command: tuple[str, ...] = ()
    user: int | None = None
    problem: str = ""
    limits_processes: bool = False
    sockets: bool = False
    reaches_sockets: bool = False


@attrs.define
class RunningTests:
    """The processes of tests that run; they can be ended from another thread, and none starts after that."""

    _processes: set[ChildProcess] = attrs.field(factory=set)
    _lock: threading.Lock = attrs.field(factory=threading.Lock)
    _is_over: bool = False

    def start(self, command: Sequence[str], **options: Any) -> ChildProcess | None:
        """Start a process; None after the end."""
        with self._lock:
            if self._is_over:
                return None
            process = ChildProcess(command, **options)
            self._processes.add(process)
            return process

    def finish(self, process: ChildProcess) -> None:
        """Kill a process and what it started, and wait for it.

        The first process of a namespace, with which all others in it end, may have left the session and cleared the
        signal of its parent's death; it is a descendant of `unshare`.
        """
        with self._lock:
            self._processes.discard(process)
        process.end()

    def end(self) -> None:
        """Kill every process."""
        with self._lock:
            self._is_over = True
            for process in self._processes:
                process.end()


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
                limits_processes = user is not None or users == [None]
                found, problem = _tried(python, Confinement(NAMESPACES, user, limits_processes=limits_processes))
                if not problem:
                    return found
    for user in users:
        found, refused = _tried(python, Confinement((), user, problem, sockets=not isolate))
        if not refused:
            return found
    raise PluginError(f"code_tests.python = {python!r}: the interpreter does not start: {refused}")


_PROBE = "import socket\ntry:\n    socket.socket()\n    print('open')\nexcept PermissionError:\n    pass"


def _tried(python: str, confinement: Confinement) -> tuple[Confinement, str]:
    """Return whether a program in this confinement reaches sockets, and why it does not run, or an empty string."""
    try:
        ran = run(_PROBE, "assert 1", python=python, confinement=confinement, limits=_PROBE_LIMITS, timeout_s=PROBE_S)
    except OSError as error:
        return confinement, str(error)
    if ran.is_passed:
        return attrs.evolve(confinement, reaches_sockets=bool(ran.output)), ""
    return confinement, ran.errors.strip().splitlines()[-1] if ran.errors.strip() else f"status {ran.status}"


def run(
    code: str,
    test: str | None,
    *,
    python: str,
    confinement: Confinement,
    limits: Mapping[str, int],
    timeout_s: float,
    text: str = "",
    running: RunningTests | None = None,
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
        running: receives the process, so that another thread can end it.
    """
    token = secrets.token_hex(16)
    processes = limits["processes"] if confinement.limits_processes else 0
    numbers = {**limits, "processes": processes, "cpu_s": int(timeout_s) + 2}
    job = json.dumps(
        {"code": code, "test": test, "token": token, "limits": numbers, "sockets": confinement.sockets}
    ).encode()
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
            status, said = _start(running or RunningTests(), python, confinement, job, files, work, timeout_s)
            output, errors = _read(files[1], limits["file_mb"] * MIB), _read(files[2], MIB)
        finally:
            for file in files:
                file.close()
    return Ran(output, errors[-2000:], status, said == token.encode())


def _start(
    running: RunningTests,
    python: str,
    confinement: Confinement,
    job: bytes,
    streams: Sequence[object],
    work: Path,
    timeout_s: float,
) -> tuple[int | None, bytes]:
    """Start the process, wait for it, and return its exit code and what it wrote to the channel."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [*confinement.command, python, "-P", "-s", "-B", str(RUNNER), str(theirs.fileno())]
        environment = {
            "PATH": os.defpath, "HOME": str(work), "TMPDIR": str(work), "LANG": "C.UTF-8", "PYTHONHASHSEED": "0",
            "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        }  # fmt: skip
        process = running.start(
            command, stdin=streams[0], stdout=streams[1], stderr=streams[2], cwd=work, env=environment,
            pass_fds=[theirs.fileno()], user=confinement.user,
        )  # fmt: skip
        if process is None:
            return None, b""
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
            running.finish(process)
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
            "code_tests: there are no namespaces: tests see other processes, and processes that they leave may go on",
            because=confinement.problem,
        )  # fmt: skip
    if isolate and confinement.reaches_sockets:
        log.warning("code_tests: this system cannot refuse sockets to a process: tests can reach the network")
    if not confinement.limits_processes:
        reason = "run the training as another user than root" if os.geteuid() == 0 else "it needs namespaces"
        log.warning("code_tests: the number of processes of a test is not limited", because=reason)
    if sys.platform != "linux":
        log.warning("code_tests: this system does not limit the memory of a process")
