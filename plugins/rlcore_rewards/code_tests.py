"""The reward `code_tests`: the share of a prompt's tests that the code in an output passes.

Each test is run in a process of its own (`sandbox`). A statement passes if neither the code nor the statement raises;
it runs in the interpreter of the code, which could tamper with it. An input with an output passes if the code, run as a
program, exits with 0 and prints the output; white space at the ends of lines and empty lines at the end do not count.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import attrs

from rlcore.errors import PluginError, RewardError
from rlcore_rewards import sandbox
from rlcore_rewards.columns import refuse_misfit, refuse_missing, signature
from rlcore_rewards.config import CodeTestsConfig
from rlcore_rewards.parts import after, last_block
from rlcore_rewards.tally import Tally


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
        self.__signature__ = signature("code_tests.column", [config.column])
        if config.isolation == "require" and self._confinement.problem:
            raise PluginError(
                f"code_tests.isolation = 'require': this system has no namespaces ({self._confinement.problem}); allow "
                "user namespaces, or accept that tests reach the network with isolation: try"
            )

    def __call__(self, *, outputs: Sequence[str], **columns: Sequence[Any]) -> list[float | None]:
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
        with ThreadPoolExecutor(self.config.workers or os.cpu_count() or 1) as threads:
            passed = dict(zip(distinct, threads.map(self._passes, distinct), strict=True))
        late = f"tests were ended at code_tests.timeout_s = {self.config.timeout_s:g}, and count as failed"
        self._tally.add(len(jobs), {late: num} if (num := sum(passed[job] is None for job in jobs)) else {})
        none = f"outputs have no tests in the column '{column}', and get no reward"
        self._untested.add(len(outputs), {none: num} if (num := tests.count([])) else {})
        return [
            self._credit([passed[self._code(output), test] is True for test in each]) if each else None
            for output, each in zip(outputs, tests, strict=True)
        ]

    def close(self) -> None:
        """Log how many tests took too long, and how many outputs have none."""
        self._tally.close()
        self._untested.close()

    @cached_property
    def _confinement(self) -> sandbox.Confinement:
        isolate = self.config.isolation != "none"
        found = sandbox.confine(self._python, isolate=isolate)
        sandbox.warn_of_gaps(found, isolate=isolate)
        return found

    def _passes(self, job: tuple[str, CodeTest]) -> bool | None:
        """Return whether a test passes; None if it took too long."""
        code, test = job
        if not code.strip():
            return False
        names = ("memory_mb", "file_mb", "open_files", "processes")
        ran = sandbox.run(
            code, test.statement, python=self._python, confinement=self._confinement,
            limits={name: getattr(self.config, name) for name in names}, timeout_s=self.config.timeout_s,
            text=test.stdin,
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

    def _read(self, value: Any, where: str) -> list[CodeTest]:
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


def _parsed(text: str) -> Any:
    """Return the tests in a text: JSON, or else Python, which is one test."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return [text] if text.strip() else []
    return value if isinstance(value, (list, dict)) else [text]


def _test(value: Any, where: str) -> CodeTest:
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
