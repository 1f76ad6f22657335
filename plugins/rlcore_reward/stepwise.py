"""Answers in steps with a verdict each: the pipeline `stepwise`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from rlcore.errors import DataError
from rlcore.safe_text import shorten
from rlcore.types import Sample
from rlcore_preferences.answers import number_rows
from rlcore_transformers.data.mixtures import mixing
from rlcore_transformers.data.rows import ANSWERS, load_rows, name_unread
from rlcore_transformers.data.tokens import (
    encode,
    encode_continuations,
    missing_opening,
    opening_tokens,
    shorter,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlcore.settings import DataConfig

SEPARATOR = "\n"
"""Text after every step of an answer; the label of the step is that of its last token."""


STEPS = ("completions", "labels")
"""Keys of a row beside the prompt."""
UNLABELLED = -100
"""Label of a token that is not the last of a step, which `torch.nn.functional.cross_entropy` ignores."""


@attrs.frozen
class SteppedSample:
    """An answer in steps, each with a verdict.

    Attributes:
        sample: the prompt with all steps.
        labels: one number for each token: 1 or 0 at the last token of a correct or wrong step, `UNLABELLED` elsewhere.
    """

    sample: Sample
    labels: tuple[int, ...]


@mixing
def build_stepwise(
    source: Any, tokenizer: PreTrainedTokenizerBase, data: DataConfig, *, max_length: int, what: str = "samples"
) -> list[SteppedSample]:
    """Read and tokenise answers in steps with a verdict each, in their order.

    A row is a mapping with `prompt` (or `data.prompt_column`), a string, `completions`, a list of strings, and
    `labels`, one true or false for each. Each step is followed by a line break, whose last token has the label. A row
    that is longer than `data.max_sample_tokens` or the model's context is cut at the end; cut to the context, it may
    have no label left.

    The arguments are those of `rlcore.protocols.SamplePipeline`.

    Raises:
        DataError: a row is invalid, or `data.max_sample_tokens` leaves no step of it; the message names the first one.
    """
    rows = list(number_rows(load_rows(source, tokenizer, data, what, answers=("completion", *ANSWERS)), what))
    name_unread([row for _, row in rows], [(data.prompt_column, *STEPS)] * len(rows), tokenizer, what)
    read = [_read_steps(row, data.prompt_column, where) for where, row in rows]
    prompts = encode(tokenizer, [prompt for prompt, _, _ in read], lambda i: rows[i][0])
    flat = [step for _, steps, _ in read for step in steps]
    tokens = iter(encode_continuations(tokenizer, flat))
    (separator,) = encode_continuations(tokenizer, [SEPARATOR])
    opening = opening_tokens(tokenizer, data.add_bos)
    made = []
    for prompt, (_, steps, labels), (where, _) in zip(prompts, read, rows, strict=True):
        ids = missing_opening(prompt, opening) + prompt
        start, marks = len(ids), [UNLABELLED] * len(ids)
        for _, label in zip(steps, labels, strict=True):
            step = [*next(tokens), *separator]
            ids += step
            marks += [UNLABELLED] * (len(step) - 1) + [int(label)]
        made.append(_fit(ids, marks, start, data.max_sample_tokens, max_length, where))
    return made


build_stepwise.example_rows = [  # type: ignore[attr-defined]  # read by the conformance kit
    {
        "prompt": "ab" * (1 + i % 3),
        "completions": ["c" * (1 + i % 4), "de"][: 1 + i % 2],
        "labels": [True, i % 3 == 0][: 1 + i % 2],
    }
    for i in range(10)
]


def _read_steps(row: Mapping[str, Any], prompt_column: str, where: str) -> tuple[str, Sequence[str], Sequence[bool]]:
    prompt, steps, labels = (row.get(key) for key in (prompt_column, "completions", "labels"))
    if not isinstance(prompt, str):
        raise DataError(
            f"{where}: '{prompt_column}' is {shorten(prompt)} (keys: {', '.join(map(repr, row)) or 'none'}); "
            "the prompt of an answer in steps is a string; data.columns renames columns"
        )
    if not isinstance(steps, list | tuple) or not steps or not all(isinstance(step, str) for step in steps):
        raise DataError(
            f"{where}: 'completions' is {shorten(steps)}; it must be a list of strings, one for each step"
            + _as_json(steps)
        )
    if (
        not isinstance(labels, list | tuple)
        or len(labels) != len(steps)
        or any(label not in (0, 1) for label in labels)
    ):
        raise DataError(
            f"{where}: 'labels' is {shorten(labels)}; it must be one true or false for each of {len(steps)} steps"
            + _as_json(labels)
        )
    return prompt, steps, labels


def _as_json(value: Any) -> str:
    """Return the advice for a text, such as a cell of a table."""
    return (
        "; if it is JSON, set data.column_types, as in {completions: json, labels: json}"
        if isinstance(value, str)
        else ""
    )


def _fit(ids: list[int], marks: list[int], start: int, limit: int, max_length: int, where: str) -> SteppedSample:
    size = len(ids)
    ids = ids[: shorter(limit, max_length) or None]
    marks = marks[: len(ids)]
    if 0 < limit == len(ids) and all(mark == UNLABELLED for mark in marks):
        raise DataError(f"{where}: no step ends within data.max_sample_tokens = {limit}; raise it, or remove the row")
    chosen = tuple(k > 0 and k >= start for k in range(len(ids)))
    return SteppedSample(Sample(tuple(ids), chosen, ended=len(ids) == size), tuple(marks))
