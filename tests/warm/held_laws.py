"""Laws of the kit that are held against a trainer with further options, or with an independent implementation."""

from __future__ import annotations

from typing import Any

from rlcore_testing import conformance


def hold(dist: str, law: str, *, of: str = "trainer-", **given: Any) -> None:
    """Hold one law against the trainer of a dist; `given` is what `conformance` takes."""
    cases = (each.values[0] for each in conformance(dist, **given))
    (case,) = (each for each in cases if each.law.name == law and each.id.startswith(of))
    case()
