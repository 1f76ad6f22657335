"""Keep `transformers` and `peft` from talking while they work for us, and short where they fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence the progress bars and notices that loading and saving print."""
    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or what kind of error it is."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
