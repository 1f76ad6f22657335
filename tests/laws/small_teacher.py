"""A teacher for the trainers of distillation, with other weights than the models of the kit."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from rlcore_testing.small import make_llama, make_tokenizer


@cache
def teacher_folder() -> str:
    """Return the folder of the teacher."""
    folder = Path(tempfile.mkdtemp(prefix="rlcore-laws-")) / "teacher"
    make_llama(seed=7, width=24).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return str(folder)
