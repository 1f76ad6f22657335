"""Teachers in folders and trainers with a tiny model, for these tests."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from rlcore.config import structure
from rlcore.settings import TrainConfig
from rlcore.training.build import assemble
from rlcore.training.inputs import Inputs
from rlcore_testing.small import PROMPTS, SAMPLES, make_llama, make_tokenizer

VARIANTS = [(32, False), (32, True), (40, False), (64, False), (300, False)]
"""Logits of the teachers, and whether their weights are float64."""
TEACHERS = Path(tempfile.gettempdir()) / f"rlcore-distill-{os.getpid()}"


def teacher_folder(vocab: int = 32, *, double: bool = False) -> str:
    """Return the folder of a teacher with other weights than the models of the kit, and logits of so many tokens.

    Tables of options name it; `conftest.py` writes the teachers before the first test.
    """
    return str(TEACHERS / f"{vocab}-{'double' if double else 'single'}")


def write_teachers() -> None:
    """Write each teacher of these tests to its folder."""
    for vocab, double in VARIANTS:
        folder = teacher_folder(vocab, double=double)
        model = make_llama(seed=7, width=24, vocab=vocab)
        (model.double() if double else model).save_pretrained(folder)
        make_tokenizer().save_pretrained(folder)


def make(
    folder: Path, *, trainer: str = "distill", options: Any = None, model_options: Any = None, inputs: Any = None,
    **sections: Any,
) -> Any:  # fmt: skip
    """Return a trainer of a tiny model with these options."""
    options = {"teacher": teacher_folder(), "batch_size": 4, **(options or {})}
    settings = {
        "trainer": {"name": f"rlcore-distill:{trainer}", **options}, "loggers": [],
        "gen": {"max_new_tokens": 6, **sections.pop("gen", {})},
        "run": {"root": str(folder), "steps": 3}, "model": model_options or {}, **sections,
    }  # fmt: skip
    given = {"prompts": list(PROMPTS)} if trainer == "distill_prompts" else {"samples": [list(row) for row in SAMPLES]}
    given = {"model": make_llama(), "tokenizer": make_tokenizer(), **(given if inputs is None else inputs)}
    built = Inputs(**given)
    return assemble(structure(TrainConfig, settings, where="test"), built, "test").trainer


def other_tokenizer(folder: Path) -> str:
    """Return a folder with a model, and a tokenizer that has one token more."""
    make_llama(vocab=33).save_pretrained(folder)
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["<new>"])
    tokenizer.save_pretrained(folder)
    return str(folder)
