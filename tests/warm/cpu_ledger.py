"""A pytest plugin that measures the CPU time of every test and fixture, in all processes that they start.

`make test-times` loads it. Wall time depends on what else a machine does, and CPU time hardly does; a test of processes
spends most of it in them, so each figure is that of this process and all its descendants. Workers of pytest-xdist send
their figures along with the reports of tests, and the first process writes them to `--ledger FILE`, sorted:
seconds of files, of tests, and of the fixtures that were set up.
"""

from __future__ import annotations

import os
import resource
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
NAME = "cpu_s"


def cpu_s() -> float:
    """Return the CPU seconds of this process, of its living descendants, and of those that have been waited for."""
    mine, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    own = mine.ru_utime + mine.ru_stime + ended.ru_utime + ended.ru_stime
    return own + sum(map(_tree_s, _children(os.getpid())))


def _tree_s(pid: int) -> float:
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # it has ended meanwhile
        return 0.0
    ticks = line.rpartition(")")[2].split()[11:15]  # user and system time, its own and that of its ended children
    return sum(map(int, ticks)) / TICKS_PER_S + sum(map(_tree_s, _children(pid)))


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found.extend(map(int, (task / "children").read_text(encoding="utf-8").split()))
    except OSError:
        pass
    return found


class Ledger:
    """Measurements of one process of pytest; in the one that was started by hand, those of all."""

    def __init__(self, config: pytest.Config) -> None:
        self.file = Path(config.getoption("ledger"))
        self.is_worker = hasattr(config, "workerinput")
        self.lines = None if self.is_worker else self.file.with_suffix(".lines")
        if self.lines:
            self.lines.parent.mkdir(parents=True, exist_ok=True)
            self.lines.write_text("", encoding="utf-8")
        self.tests: Counter[str] = Counter()
        self.fixtures: Counter[str] = Counter()
        self.fixture_uses: Counter[str] = Counter()
        self.collection_s = 0.0
        self._in_fixtures: list[float] = []
        self._new_fixtures: list[tuple[str, float]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        begun = cpu_s()
        result = yield
        self.collection_s = cpu_s() - begun
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[Any]:
        """Measure a fixture without those that it needs."""
        begun = cpu_s()
        self._in_fixtures.append(0.0)
        try:
            return (yield)
        finally:
            spent = cpu_s() - begun
            own = spent - self._in_fixtures.pop()
            if self._in_fixtures:
                self._in_fixtures[-1] += spent
            self._new_fixtures.append((f"{fixturedef.baseid or 'conftest'}::{fixturedef.argname}", own))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        return (yield from self._measured(item, "setup"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        return (yield from self._measured(item, "call"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        return (yield from self._measured(item, "teardown"))

    def _measured(self, item: pytest.Item, phase: str) -> Iterator[None]:
        begun = cpu_s()
        try:
            return (yield)
        finally:
            item.stash.setdefault(SPENT, {})[phase] = cpu_s() - begun

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[pytest.TestReport]:
        report = yield
        report.cpu_s = item.stash.get(SPENT, {}).get(report.when, 0.0)
        report.cpu_of_fixtures, self._new_fixtures = self._new_fixtures, []
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        if self.lines is None or not hasattr(report, NAME):
            return
        self.tests[report.nodeid] += report.cpu_s
        for name, spent in report.cpu_of_fixtures:
            self.fixtures[name] += spent
            self.fixture_uses[name] += 1
        with self.lines.open("a", encoding="utf-8") as written:
            print(f"{report.cpu_s:.3f}\t{report.duration:.3f}\t{report.when}\t{report.nodeid}", file=written)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.lines is None:
            return
        text = self.text()
        self.file.write_text(text, encoding="utf-8")
        terminalreporter.write_line("\n".join(text.splitlines()[:14]))
        terminalreporter.write_line(f"the whole ledger: {self.file}")

    def text(self) -> str:
        files: Counter[str] = Counter()
        counts: defaultdict[str, int] = defaultdict(int)
        for test, spent in self.tests.items():
            name = test.partition("::")[0]
            files[name] += spent
            counts[name] += 1
        lines = [f"{sum(self.tests.values()):.0f} CPU s in {len(self.tests)} tests", "", "# files"]
        lines += [f"{spent:9.2f}  {name}  ({counts[name]})" for name, spent in files.most_common()]
        lines += ["", "# fixtures, without those that they need"]
        lines += [f"{spent:9.2f}  {name}  ({self.fixture_uses[name]})" for name, spent in self.fixtures.most_common()]
        lines += ["", "# tests"]
        lines += [f"{spent:9.2f}  {name}" for name, spent in self.tests.most_common()]
        return "\n".join(lines) + "\n"


SPENT = pytest.StashKey[dict[str, float]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--ledger", default="build/test-times.txt", help="where to write CPU seconds of tests")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Ledger(config), "the ledger")
