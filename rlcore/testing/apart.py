"""Hold a case apart: what is global is as it was afterwards, and what never ends is ended."""

from __future__ import annotations

import contextlib
import random
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from rlcore.testing.laws import LawBroken

TIME_LIMIT_S = 600.0
"""No law comes near it; a trainer that never yields would go on for ever."""


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Put the global generators back, and have float32 in between; what was not imported before, nobody has set."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    with contextlib.ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        if numpy is not None:
            stack.callback(numpy.random.set_state, numpy.random.get_state())
        if torch is not None:
            stack.callback(torch.set_rng_state, torch.get_rng_state())
            stack.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(torch.float32)
        yield


@contextlib.contextmanager
def bounded(limit_s: float = TIME_LIMIT_S) -> Iterator[None]:
    """End the block where it takes longer, if a signal can: in the main thread, on Unix, beside no alarm of others.

    Raises:
        LawBroken: from wherever the block was.
    """
    alone = hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread()
    if not alone or signal.getitimer(signal.ITIMER_REAL)[0] > 0:
        yield
        return

    def ring(_: int, frame: FrameType | None) -> None:
        where = "" if frame is None else f", then in {frame.f_code.co_qualname} of {frame.f_code.co_filename}"
        raise LawBroken(f"not over after {limit_s:g} s{where}: does every loop of it yield or end?")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
