"""Silence the progress bars and messages of diffusers and transformers while they load and save."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import diffusers.utils
import transformers.utils

LIBRARIES: tuple[Any, ...] = (diffusers.utils.logging, transformers.utils.logging)


@contextmanager
def quiet_diffusers() -> Iterator[None]:
    """Silence both libraries in the block."""
    before = [(each.is_progress_bar_enabled(), each.get_verbosity()) for each in LIBRARIES]
    for each in LIBRARIES:
        each.disable_progress_bar()
        each.set_verbosity_error()
    try:
        yield
    finally:
        for each, (had_bars, level) in zip(LIBRARIES, before, strict=True):
            each.set_verbosity(level)
            if had_bars:
                each.enable_progress_bar()
