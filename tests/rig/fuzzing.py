"""What fuzz tests share: values of every kind that YAML and Python know, and the law that each case is held to."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from hypothesis import strategies as st

from rlcore.errors import RLCoreError

MAX_SECONDS = 300
"""Seconds after which a case counts as hanging, also on a busy machine."""
TEXT = st.text(max_size=20) | st.sampled_from(
    ["", " ", "\0", "\x1b[31m", "../..", "a:b", "{}", "é\u0301", "\ud800", "~"]
)
NUMBERS = (
    st.integers(-3, 3)
    | st.sampled_from([2**31, -(2**63), 10**400])
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.sampled_from([0.0, -0.0, 1e-320, 1e308])
)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXT
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=6
)


class Hang(BaseException):
    """A case took longer than `MAX_SECONDS`."""


@contextmanager
def no_hang() -> Iterator[None]:
    """Raise `Hang` in the block if it does not end in time."""

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise Hang(f"did not end within {MAX_SECONDS} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(MAX_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def result_or_message(call: Callable[[], Any], kind: type[RLCoreError] = RLCoreError) -> Any:
    """Return what `call` returns, or the error of `kind` that it raises.

    Every other exception, and a call that hangs, fails the test.
    """
    with no_hang():
        try:
            return call()
        except kind as error:
            return error
