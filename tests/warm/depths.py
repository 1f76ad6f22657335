"""Which cases of a table run by day; the others are left to `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def by_day(cases: Iterable[Any], chosen: Iterable[Any]) -> list[Any]:
    """Return all cases of a test, with the mark `nightly` on those that are not chosen.

    Args:
        cases: the values of `pytest.mark.parametrize`; a case is a tuple if there are several names.
        chosen: cases, or the first values of tuples, that stand for the others by day.
    """
    table, day = list(cases), list(chosen)
    first = [case[0] if isinstance(case, tuple) else case for case in table]
    if unknown := [each for each in day if each not in table and each not in first]:
        raise ValueError(f"no case of this table is {unknown}")
    return [
        pytest.param(*(case if isinstance(case, tuple) else [case]), marks=[] if is_chosen else [pytest.mark.nightly])
        for case, start in zip(table, first, strict=True)
        for is_chosen in [case in day or start in day]
    ]
