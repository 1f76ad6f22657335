"""Rows of data as pipelines return them, prompts and demonstrations, and batches of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch

from rlcore.profiling import timed
from rlcore.types.trajectories import Trajectories


def is_conversation(value: object) -> bool:
    """Return whether `value` is a non-empty list of messages with a role."""
    return (
        isinstance(value, (list, tuple))
        and bool(value)
        and all(isinstance(message, Mapping) and "role" in message for message in value)
    )


def without_none(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without the keys that `datasets` fills with None where other rows have them.

    The same holds for the parts of its content and for its tool calls, but not for their arguments.
    """
    kept = {key: value for key, value in message.items() if value is not None}
    for key in ("content", "tool_calls"):
        if isinstance(kept.get(key), (list, tuple)):
            kept[key] = [without_none(part) if isinstance(part, Mapping) else part for part in kept[key]]
    if isinstance(kept.get("function"), Mapping):
        kept["function"] = without_none(kept["function"])
    return kept


RESERVED_COLUMNS = ("samples", "prompts", "outputs", "output_tokens", "tokenizer")
"""Argument names of reward and metric functions, which columns of prompts must not have."""


@attrs.frozen
class Prompt:
    """A prompt: its text, its tokens and the other columns of its row.

    Attributes:
        text: the text that reward functions receive; a conversation is rendered with the chat template.
        tokens: token ids of the prompt, including the tokenizer's special tokens such as BOS.
        columns: other columns of the user's row, which reward and metric functions receive.
        messages: the {role, content} messages of a conversation; None for a plain text.
        source: name of the source of a mixture, by which metrics are split; empty otherwise.
    """

    text: str
    tokens: tuple[int, ...]
    columns: Mapping[str, Any] = attrs.field(factory=dict)
    messages: Sequence[Mapping[str, Any]] | None = None
    source: str = ""


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
class SampleReward:
    """Rewards of one demonstration.

    Attributes:
        tokens: T numbers, the reward for choosing each token; 0 at tokens the policy does not choose.
        dense: whether the sample has several rewards, one for each output or token.
    """

    tokens: tuple[float, ...]
    dense: bool

    @property
    def total(self) -> float:
        """Return the sample's undiscounted return."""
        return math.fsum(self.tokens)


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


@timed("batches")
def stack_samples(samples: Sequence[Sample]) -> Trajectories:
    """Pad demonstrations into one batch, on the CPU, in their order."""
    rows, chosen = [sample.tokens for sample in samples], [sample.action_mask for sample in samples]
    return Trajectories.stack(rows, chosen, ended=[sample.ended for sample in samples])


def stack_groups(groups: Sequence[Sequence[Sample]], **columns: Sequence[Sequence[float]]) -> tuple[Trajectories, int]:
    """Pad groups of different sizes into one batch, on the CPU; return it and the number of rows of each group.

    With `group=` that number, minibatches, micro-batches and ranks keep the rows of a group together. A smaller group
    is filled up at its end with rows without a chosen token (`batch.num_actions` is 0), which a loss that compares the
    rows of a group leaves out.

    Args:
        groups: the sequences of each group, at least one.
        columns: a number for each sequence of each group, such as its score; the filler rows have 0.

    Raises:
        ValueError: a column has not one number for each sequence.
    """
    size = _rows_of_group(groups)
    fillers = [[attrs.evolve(g[0], action_mask=(False,) * len(g[0].tokens))] * (size - len(g)) for g in groups]
    batch = stack_samples([each for group, more in zip(groups, fillers, strict=True) for each in (*group, *more)])
    made = {}
    for name, values in columns.items():
        if [len(row) for row in values] != [len(group) for group in groups]:
            raise ValueError(f"column '{name}': must have one number for each sequence of each group")
        made[name] = torch.tensor([number for row in values for number in (*row, *[0.0] * (size - len(row)))])
    return batch.with_columns(**made), size


def _rows_of_group(groups: Sequence[Sequence[Sample]]) -> int:
    return max(map(len, groups))
