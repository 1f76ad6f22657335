"""Make small changes to the source, run the tests that are about each, and print which changes no test notices.

Without paths, lines that differ from `--base` are changed: by default, the commit where the branch left `main`, or on
`main` the commit before. With paths, all lines of these files and folders. Changes are made in a copy of the tree.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from mutations import Mutation, mutations
from warm_python import WarmPython

FAILED = re.compile(r"^(?:FAILED|ERROR) ([^\s\[]+)", re.MULTILINE)
CAUGHT, LATE, SURVIVED, UNTESTED = "caught", "time limit", "survived", "no test"
OPTIONS = "tests/docs/test_generated.py"
"""The pages that are generated from the code hold defaults and meanings of options."""
QUICK = "not slow and not nightly and not engine"
"""The tests of `make test`."""
COMMON = 20
"""A name that so many test files contain, such as `steps`, does not tell which of them are about it."""


def git(root: Path, *arguments: str) -> str:
    """Return the output of a git command."""
    return subprocess.run(["git", "-C", str(root), *arguments], check=True, capture_output=True, text=True).stdout


def changed_lines(root: Path, base: str | None) -> dict[str, set[int]]:
    """Return for each file the lines of the working tree that differ from a commit, from 1."""
    if base is None:
        base = git(root, "merge-base", "main", "HEAD").strip()
        base = "HEAD~1" if base == git(root, "rev-parse", "HEAD").strip() else base
    lines: dict[str, set[int]] = {}
    name = ""
    for line in git(root, "diff", "-U0", "--no-color", "--no-ext-diff", base, "--", "*.py").splitlines():
        if line.startswith("+++ "):
            name = line.removeprefix("+++ b/")
        elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            lines.setdefault(name, set()).update(range(first, first + count))
    return lines


def sample(root: Path, paths: Sequence[str], base: str | None, most: int, seed: int) -> list[tuple[str, Mutation]]:
    """Return at most `most` mutations of the packages, with their files, drawn with a seed and in the files' order."""
    lines = None if paths else changed_lines(root, base)
    every = [
        (name, mutation)
        for name in git(root, "ls-files", "--", *paths).splitlines()
        if name.endswith(".py") and not {"tests", "docs", "conftest.py"} & {*Path(name).parts}
        if lines is None or name in lines
        for mutation in mutations((root / name).read_text(encoding="utf-8"))
        if lines is None or lines[name] & {*range(mutation.line, mutation.last + 1)}
    ]
    chosen = random.Random(seed).sample(range(len(every)), min(most, len(every)))
    return [every[index] for index in sorted(chosen)]


@cache
def _tests(root: Path) -> dict[Path, tuple[str, frozenset[str]]]:
    """Return the text of every test file, and the words in it."""
    texts = {
        test.relative_to(root): test.read_text(encoding="utf-8")
        for pattern in ("tests/**/test_*.py", "plugins/*/tests/**/test_*.py")
        for test in root.glob(pattern)
    }
    return {test: (text, frozenset(re.findall(r"\w+", text))) for test, text in texts.items()}


def related_tests(root: Path, name: str, scope: Sequence[str], most: int) -> list[str]:
    """Return the test files about a function of a source, the nearest first.

    A test file is near that imports the module, names the class or function, or lies in the folder of its package or
    shelf.
    """
    path = Path(name)
    module = name.removeprefix("plugins/").removesuffix(".py").replace("/", ".")
    shelf = [part.removeprefix("rlcore_") for part in path.parts[:-1] if part != "rlcore"]
    folder = Path(*path.parts[:2], "tests") if path.parts[0] == "plugins" else Path("tests", *shelf)
    while not (root / folder).is_dir():
        folder = folder.parent
    parts = [part for part in path.stem.split("_") if len(part) > 2]
    tests = _tests(root)
    told = {each for each in scope if sum(each in words for _, words in tests.values()) < COMMON}
    scores = {}
    for test, (text, words) in tests.items():
        near = folder != Path("tests") and test.is_relative_to(folder)
        score = 4 * (module in text) + 4 * bool(told & words) + 3 * near + 2 * any(part in test.stem for part in parts)
        if score > 1:
            scores[str(test)] = score + (path.stem in words)
    nearest = sorted(scores, key=lambda test: (-scores[test], test))[:most]
    has_options = "= option(" in (root / name).read_text(encoding="utf-8") and Path(OPTIONS) in tests
    return [*nearest, OPTIONS] if has_options and OPTIONS not in nearest else nearest


class Copy:
    """A copy of the tree, in which one source is changed at a time and tests are run.

    Args:
        root: the tree.
        folder: where the copy is made.
        warm: starts pytest.
        limit_s: time for the tests of one change; a change that makes them run longer is reported as such.
    """

    def __init__(self, root: Path, folder: Path, warm: WarmPython, limit_s: float) -> None:
        self.tree, self.warm, self.limit_s = folder / "tree", warm, limit_s
        for name in git(root, "ls-files", "-co", "--exclude-standard").splitlines():
            if (root / name).is_file():  # not deleted
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(root / name, self.tree / name)
        self.fails_anyway: dict[str, bool] = {}

    def outcome(self, name: str, mutation: Mutation, tests: Sequence[str]) -> tuple[str, str]:
        """Return what became of a mutation, and the test that noticed; one that fails without it is left out."""
        while tests:
            with self._changed(name, mutation):
                failed = self._first_failure(tests)
            if not failed:
                return (SURVIVED, "") if failed == "" else (LATE, "")
            if failed not in self.fails_anyway:
                self.fails_anyway[failed] = self._first_failure([failed]) != ""
                if self.fails_anyway[failed]:
                    continue
            return CAUGHT, failed
        return UNTESTED, ""

    @contextlib.contextmanager
    def _changed(self, name: str, mutation: Mutation) -> Iterator[None]:
        path = self.tree / name
        original = path.read_text(encoding="utf-8")
        compiled = Path(importlib.util.cache_from_source(str(path)))  # two sources of one second may have one size
        try:
            path.write_text(mutation.applied(original), encoding="utf-8")
            compiled.unlink(missing_ok=True)
            yield
        finally:
            path.write_text(original, encoding="utf-8")
            compiled.unlink(missing_ok=True)

    def _first_failure(self, tests: Sequence[str]) -> str | None:
        """Return the name of a test that fails, "" if none does, None after the time limit."""
        left_out = [f"--deselect={test}" for test, fails in self.fails_anyway.items() if fails]
        pytest = ["-m", "pytest", "-qx", "-rfE", "--tb=no", "-p", "no:cacheprovider", "-m", QUICK, *left_out]
        environment = {**os.environ, "PYTHONPATH": f"{self.tree}{os.pathsep}{self.tree / 'plugins'}"}
        try:
            done = self.warm.run([*pytest, *tests], cwd=self.tree, environment=environment, timeout_s=self.limit_s)
        except subprocess.TimeoutExpired:
            return None
        if done.returncode in {0, 5}:  # 5: no test is left
            return ""
        found = FAILED.search(done.stdout)
        return found[1] if found else tests[0]  # a process that dies names no test


def arguments() -> argparse.ArgumentParser:
    """Return the options of the command."""
    parser = argparse.ArgumentParser(prog="mutate", description=__doc__)
    parser.add_argument("paths", nargs="*", help="files or folders of packages, all of whose lines are changed")
    parser.add_argument("--base", help="commit from which changed lines are counted")
    parser.add_argument("--most", type=int, default=50, help="how many changes are drawn")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw")
    parser.add_argument("--files", type=int, default=10, help="how many test files run for a change")
    parser.add_argument("--limit-s", type=float, default=600.0, help="time for the tests of one change")
    parser.add_argument("--least", type=float, default=0.0, help="share that has to be noticed")
    return parser


def main(root: Path, asked: argparse.Namespace, folder: Path, warm: WarmPython) -> int:
    """Print one line for each mutation, then the share that was noticed; return 1 if it is below `--least`."""
    copy = Copy(root, folder, warm, asked.limit_s)
    counts: Counter[str] = Counter()
    for name, mutation in sample(root, asked.paths, asked.base, asked.most, asked.seed):
        outcome, by = copy.outcome(name, mutation, related_tests(root, name, mutation.scope, asked.files))
        counts[outcome] += 1
        change = f"{' '.join(mutation.old.split())}  →  {mutation.new}"
        print(f"{outcome}: {name}:{mutation.line}: {change}{by and f'  ({by})'}", flush=True)
    rest = f"{counts[SURVIVED]} survived, {counts[LATE]} reached the time limit, {counts[UNTESTED]} without a test"
    print(f"{counts[CAUGHT]} of {counts.total()} noticed; {rest}")
    return int(counts[CAUGHT] < asked.least * counts.total())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="mutate-") as kept:
        forks = WarmPython(Path(kept))
        try:
            sys.exit(main(Path(__file__).parents[2], arguments().parse_args(), Path(kept), forks))
        finally:
            forks.close()
