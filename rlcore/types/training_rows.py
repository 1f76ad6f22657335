"""Rows of data as pipelines return them: prompts, demonstrations, preferences and verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs


@attrs.frozen
class Prompt:
    """A prompt: its text, its tokens and the other columns of its row.

    Attributes:
        text: the text that reward functions receive; a conversation is rendered with the chat template.
        tokens: token ids of the prompt, including the tokenizer's special tokens such as BOS.
        columns: other columns of the user's row, which reward and metric functions receive.
        messages: the {role, content} messages of a conversation; None for a plain text.
    """

    text: str
    tokens: tuple[int, ...]
    columns: Mapping[str, Any] = attrs.field(factory=dict)
    messages: Sequence[Mapping[str, Any]] | None = None


@attrs.frozen
class Sample:
    """A demonstration.

    Attributes:
        tokens: T token ids.
        action_mask: T booleans, True for a token the policy should choose; the first is False.
        ended: False if the demonstration was truncated on the right.
        has_whole_prompt: False if the tokens before the first chosen one were truncated.
    """

    tokens: tuple[int, ...]
    action_mask: tuple[bool, ...]
    ended: bool = True
    has_whole_prompt: bool = True


@attrs.frozen
class Pair:
    """Two answers to one prompt, of which the first is preferred.

    Attributes:
        chosen: the prompt with the preferred answer; an answer without chosen tokens is empty.
        rejected: the same prompt, with the same tokens, and the other answer.
        margin: by how much the score of the chosen answer should exceed the other's, at least 0; None if unknown.
        is_tie: whether neither answer is better.
        ref_logprobs: log-probs of both answers under a reference model; None if unknown.
    """

    chosen: Sample
    rejected: Sample
    margin: float | None = None
    is_tie: bool = False
    ref_logprobs: tuple[float, float] | None = None


@attrs.frozen
class LabelledSample:
    """An answer with a verdict.

    Attributes:
        sample: the prompt with the answer.
        label: whether the answer is desirable.
    """

    sample: Sample
    label: bool


@attrs.frozen
class SteppedSample:
    """An answer in steps, each with a verdict.

    Attributes:
        sample: the prompt with all steps.
        labels: one number for each token: 1 or 0 at the last token of a correct or wrong step, -100 elsewhere.
    """

    sample: Sample
    labels: tuple[int, ...]


def sequences_of(row: Any) -> list[Sample]:
    """Return the sequences of a row of training data, in their order: a `Sample` itself, or all samples of another row.

    A pipeline may return rows of any attrs class, such as `Pair`, whose fields are samples, tuples or lists of samples,
    and plain values. A row may also be a tuple or list of samples.
    """
    if isinstance(row, Sample):
        return [row]
    if isinstance(row, tuple | list):
        return list(row) if has_samples(row) else []
    values = [getattr(row, field.name) for field in attrs.fields(type(row))]
    return [sample for value in values if has_samples(value) for sample in sequences_of(value)]


def has_samples(value: Any) -> bool:
    """Return whether a value is a `Sample`, or a tuple or list of samples."""
    return isinstance(value[0] if isinstance(value, tuple | list) and value else value, Sample)
