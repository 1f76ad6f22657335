"""Silence the progress bars and messages of diffusers and transformers while they load and save."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from diffusers.utils import logging

from rlcore.models.hub import quiet_transformers


@contextmanager
def quiet_diffusers() -> Iterator[None]:
    """Silence both libraries in the block."""
    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        with quiet_transformers():
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
