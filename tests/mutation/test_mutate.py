"""Tests of the runner of mutations, on a small package of its own."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import mutate
import pytest
from mutate import CAUGHT, SURVIVED, Copy, arguments, main, related_tests, sample
from mutations import mutations
from warm_python import WarmPython

SOURCE = '''"""Prices — with a dash of two bytes."""


def cost(pieces: int = 1, *, price: int = 5, gift: bool = False) -> int:
    """Return what pieces cost; more than three cost one less."""
    if gift and pieces:
        return 0
    return pieces * price - (1 if pieces > 3 else 0)


class Till:
    total = 0

    def pay(self, pieces: int) -> None:
        self.total += cost(pieces, price=2)
'''
TESTS = """from toy.prices import Till, cost


def test_more_than_three_cost_one_less():
    assert cost(3) == 15
    assert cost(4) == 19


def test_that_fails_anyway():
    assert cost() == 6
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a repository whose last commit adds `Till`."""
    root = tmp_path / "repository"
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for folder, name, text in (("toy", "__init__.py", ""), ("tests", "test_prices.py", TESTS)):
        (root / folder).mkdir(parents=True)
        (root / folder / name).write_text(text)
    subprocess.run(["git", "init", "-q", "-b", "main", str(root)], check=True)
    for text in (SOURCE[: SOURCE.index("class")], SOURCE):
        (root / "toy" / "prices.py").write_text(text)
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-qm", "prices"], check=True)
    return root


def changes(source: str) -> set[tuple[str, str]]:
    return {(each.old, each.new) for each in mutations(source)}


def test_every_kind_of_mutation_is_made() -> None:
    assert changes("a < b == c") == {("a < b == c", "(a <= b == c)"), ("a < b == c", "(a < b != c)")}
    assert changes("a and b") == {("a and b", "(a or b)")}
    assert changes("not a") == {("not a", "(a)")}
    assert changes("x = 3") == {("3", "4"), ("3", "(2)")}
    assert changes("x = True") == {("True", "False")}
    assert changes("x = 0.5") == {("0.5", "1.0")}
    assert changes("x = a * b") == {("a * b", "(a / b)")}
    assert changes("x = f(a, b=c, d=e)") == {("f(a, b=c, d=e)", "(f(a, d=e))"), ("f(a, b=c, d=e)", "(f(a, b=c))")}
    assert changes("if a: b.c = d") == {("a", "(not (a))"), ("b.c = d", "pass")}
    assert changes("f(a)") == {("f(a)", "pass")}


def test_lines_that_do_not_run_are_not_mutated() -> None:
    assert not changes(
        '"""Text."""\nimport a\nx: Literal[3]\ny = f"{3}"\ndef f(z: Literal[3] = a) -> Literal[3]: yield z'
    )


def test_every_changed_source_differs_in_its_lines_only_and_is_python() -> None:
    for mutation in mutations(SOURCE):
        changed = mutation.applied(SOURCE)
        ast.parse(changed)
        assert changed.splitlines()[: mutation.line - 1] == SOURCE.splitlines()[: mutation.line - 1]
        assert changed.splitlines()[mutation.last :] == SOURCE.splitlines()[mutation.last :]
        assert changed != SOURCE


def test_lines_since_the_base_are_changed_and_with_paths_all_of_them(tree: Path) -> None:
    added = SOURCE[: SOURCE.index("class")].count("\n")
    recent = sample(tree, [], None, 100, 0)
    assert {name for name, _ in recent} == {"toy/prices.py"}
    assert {each.scope for _, each in recent} == {("Till",), ("Till", "pay")}
    assert min(each.line for _, each in recent) > added
    assert [each for _, each in sample(tree, ["toy"], None, 100, 0)] == mutations(SOURCE)
    drawn = sample(tree, ["toy"], None, 3, 1)
    assert len(drawn) == 3
    assert drawn == sample(tree, ["toy"], None, 3, 1) != sample(tree, ["toy"], None, 3, 2)


def test_tests_that_name_the_function_or_its_module_run_and_others_do_not(tree: Path) -> None:
    (tree / "tests" / "test_cost.py").write_text("from toy import prices\n\ndef test_it(): prices.cost()\n")
    (tree / "tests" / "test_other.py").write_text("def test_other(): pass\n")
    assert related_tests(tree, "toy/prices.py", ("cost",), 6) == ["tests/test_prices.py", "tests/test_cost.py"]
    assert related_tests(tree, "toy/prices.py", ("cost",), 1) == ["tests/test_prices.py"]
    (tree / "tests" / "inner").mkdir()
    (tree / "tests" / "inner" / "test_more.py").write_text("def test_more(): pass\n")
    (tree / "rlcore" / "inner" / "deep").mkdir(parents=True)
    (tree / "rlcore" / "inner" / "deep" / "place.py").write_text("")
    (tree / "toy" / "price_tags.py").write_text("")
    mutate._tests.cache_clear()
    assert related_tests(tree, "toy/price_tags.py", (), 6) == ["tests/test_prices.py"]
    assert related_tests(tree, "rlcore/inner/deep/place.py", (), 6) == ["tests/inner/test_more.py"]


@pytest.mark.slow
def test_a_change_that_a_test_notices_is_caught_and_another_survives(
    tree: Path, tmp_path: Path, warm_python: WarmPython
) -> None:
    def outcome(old: str, new: str) -> tuple[str, str]:
        (mutation,) = [each for each in mutations(SOURCE) if (each.old, each.new) == (old, new)]
        return copy.outcome("toy/prices.py", mutation, ["tests/test_prices.py"])

    copy = Copy(tree, tmp_path, warm_python, limit_s=120.0)
    assert outcome("pieces > 3", "(pieces >= 3)") == (
        CAUGHT,
        "tests/test_prices.py::test_more_than_three_cost_one_less",
    )
    assert outcome("gift and pieces", "(gift or pieces)")[0] == CAUGHT
    assert outcome("self.total += cost(pieces, price=2)", "pass") == (SURVIVED, "")
    assert (copy.tree / "toy" / "prices.py").read_text() == (tree / "toy" / "prices.py").read_text() == SOURCE


@pytest.mark.slow
def test_the_command_prints_what_survived_and_the_share(
    tree: Path, tmp_path: Path, warm_python: WarmPython, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(tree, arguments().parse_args(["--most", "1", "--seed", "3", "--least", "1"]), tmp_path, warm_python)
    printed, share = capsys.readouterr().out.splitlines()
    assert printed.startswith("survived: toy/prices.py:")
    assert share == "0 of 1 noticed; 1 survived, 0 reached the time limit, 0 without a test"
    assert status == 1
