"""A run has few public names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from rlcore.training.run import Run
from rlcore_testing.small import make_gpt2

MOST_NAMES = 35


def test_a_run_has_few_public_names() -> None:
    public = {name for name in dir(Run) if not name.startswith("_")} | {
        field.name for field in attrs.fields(Run) if not field.name.startswith("_")
    }
    assert len(public) <= MOST_NAMES


def test_a_name_that_a_run_never_had_is_an_attribute_error(make_trainer: Callable[..., Any]) -> None:
    with pytest.raises(AttributeError, match="'Run' object has no attribute 'polcy'"):
        _ = make_trainer("sft", make_gpt2(), inputs={"samples": ["abc"]}).run.polcy
