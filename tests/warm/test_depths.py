"""The tables of tests that take long name tests that exist."""

from __future__ import annotations

from pathlib import Path

import pytest
from depths import NIGHTLY, SLOW, runs_by_day

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("file", sorted({*NIGHTLY, *SLOW}))
def test_each_test_of_the_tables_exists(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    assert [test for test in [*NIGHTLY.get(file, ()), *SLOW.get(file, ())] if f"def {test}(" not in text] == []


@pytest.mark.parametrize(
    ("parts", "by_day"),
    [(("a", "b"), ["a", "ab", "b"]), ((), []), (("~a",), ["b", "c"]), (("~a", "~c"), ["b"])],
)
def test_parts_of_names_choose_the_cases_of_the_day(parts: tuple[str, ...], by_day: list[str]) -> None:
    assert [case for case in ("a", "ab", "b", "c") if runs_by_day(case, parts)] == by_day
