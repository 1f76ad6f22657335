"""A teacher for the trainers of distillation, with other weights than the models of the kit."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from rlcore_testing.small import make_llama, make_tokenizer

TEACHER = str(Path(tempfile.gettempdir()) / f"rlcore-laws-{os.getpid()}" / "teacher")
"""Its folder, which tables of options name; `conftest.py` writes it before the first test."""


def write_teacher() -> None:
    """Write the teacher to `TEACHER`."""
    make_llama(seed=7, width=24).save_pretrained(TEACHER)
    make_tokenizer().save_pretrained(TEACHER)
