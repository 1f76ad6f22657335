"""Random state of its own for code that draws from the global generators of Python and numpy."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

_LOCK = threading.RLock()
"""Held while the global generators are exchanged, by all games of this process."""


class OwnRandom:
    """The state of the global generators as one game sees them.

    Args:
        seed: of both generators.
    """

    def __init__(self, seed: int) -> None:
        self._state = random.Random(seed).getstate()  # noqa: S311  no secret
        self._numpy = np.random.RandomState(seed % 2**32).get_state()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Give the global generators this state within a block, and their former one after it.

        One block runs at a time. Other threads that draw from the global generators meanwhile see the exchanged state.
        """
        with _LOCK:
            outer, outer_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
            random.setstate(self._state)
            np.random.set_state(self._numpy)  # noqa: NPY002
            try:
                yield
            finally:
                self._state, self._numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
                random.setstate(outer)
                np.random.set_state(outer_numpy)  # noqa: NPY002
