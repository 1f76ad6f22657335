"""Padded token sequences with per-token and per-sequence arrays.

Position t of every array refers to token t:

    tokens[t]        the token itself
    mask[t]          token t is real, not padding
    action_mask[t]   the policy chose token t (never the first real token, which has no log-prob)
    logprobs[t]      log pi(token t | tokens before t)
    values[t]        V(tokens before t)
    rewards[t]       received for choosing t; zero where action_mask is False

Sequences may be padded on either side, and padding values are never read: `mask` and `ended` record where a sequence
ends, whatever the token ids. Shapes: B sequences, T tokens, N chosen tokens, V vocabulary, H hidden.

Also in this file: trajectories of episodes with an environment, as a sampler of episodes returns them; rows of data
as pipelines return them, prompts and demonstrations, and batches of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any

import attrs
import torch
from torch import Tensor

from rlcore.errors import MissingColumn, ModelError
from rlcore.profiling import timed


@attrs.frozen(eq=False)
class Trajectories:
    """B token sequences, padded to T columns, with per-token and per-sequence arrays.

    Attributes:
        tokens: long[B, T].
        mask: bool[B, T], True for a real token.
        action_mask: bool[B, T], True for a token the policy chose (or, for a demonstration, should choose).
        ended: bool[B], True if the sequence ended with EOS or a stop sequence, False if it was truncated.
        columns: further arrays by name, [B, T] per token or [B] per sequence.
    """

    tokens: Tensor
    mask: Tensor
    action_mask: Tensor
    ended: Tensor
    columns: Mapping[str, Tensor] = attrs.field(factory=dict)

    def __len__(self) -> int:
        return self.tokens.shape[0]

    def __getitem__(self, name: str) -> Tensor:
        """Return the column called `name`.

        Raises:
            MissingColumn: there is no such column.
        """
        try:
            return self.columns[name]
        except KeyError:
            raise MissingColumn(name, tuple(self.columns)) from None

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    @property
    def num_actions(self) -> Tensor:
        """The number of chosen tokens of each sequence: long[B]."""
        return self.action_mask.sum(1)

    @property
    def lengths(self) -> Tensor:
        """The number of real tokens of each sequence: long[B]."""
        return self.mask.sum(1)

    @property
    def prompt_lengths(self) -> Tensor:
        """The number of real tokens before the first chosen token of each sequence: long[B]."""
        return (self.mask & (self.action_mask.cumsum(1) == 0)).sum(1)

    @property
    def action_tokens(self) -> list[list[int]]:
        """The ids of the chosen tokens of each sequence."""
        flat = self.tokens[self.action_mask].tolist()
        ends = self.num_actions.cumsum(0).tolist()
        return [flat[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def with_columns(self, **columns: Tensor) -> Trajectories:
        """Return the same sequences with columns added or replaced."""
        return attrs.evolve(self, columns={**self.columns, **columns})

    def rename(self, **names: str) -> Trajectories:
        """Return the same sequences with columns renamed, as in `rename(old_name="new_name")`."""
        return attrs.evolve(self, columns={names.get(name, name): array for name, array in self.columns.items()})

    def with_only(self, *names: str) -> Trajectories:
        """Return the same sequences with these columns and no others.

        Raises:
            MissingColumn: one of them does not exist.
        """
        return attrs.evolve(self, columns={name: self[name] for name in names})

    def rows(self, index: Tensor) -> Trajectories:
        """Return the sequences at `index` (long[K] or bool[B]), trimmed."""
        return self.each(itemgetter(index)).trim()

    def split(self, size: int) -> Iterator[Trajectories]:
        """Yield consecutive groups of at most `size` sequences, each trimmed."""
        for index in torch.arange(len(self), device=self.tokens.device).split(size):
            yield self.rows(index)

    def trim(self) -> Trajectories:
        """Drop the leading and trailing positions that are padding in every sequence."""
        used = self.mask.any(0).nonzero()
        if not len(used):
            return self
        first, last = int(used[0]), int(used[-1]) + 1
        if first == 0 and last == self.tokens.shape[1]:
            return self
        width = self.tokens.shape[1]
        return self.each(lambda array: array[:, first:last] if array.dim() > 1 and array.shape[1] == width else array)

    def extended(self) -> Trajectories:
        """Append a dummy chosen token to each sequence, so that V of the whole sequence can be computed.

        V is read before chosen tokens, and so of the whole sequence before the dummy, whose value does not matter. Of
        the other chosen tokens only the first remains chosen, for models that encode what stands before it.
        """
        height, width = self.tokens.shape
        positions = torch.arange(width + 1, device=self.tokens.device)
        past = (self.mask * positions[1:]).amax(1, keepdim=True) == positions  # one behind the last real token
        first = self.action_mask & (self.action_mask.cumsum(1) == 1)
        return Trajectories(
            tokens=torch.cat([self.tokens, self.tokens[:, -1:]], 1),
            mask=torch.cat([self.mask, self.mask.new_zeros(height, 1)], 1),
            action_mask=torch.cat([first, first.new_zeros(height, 1)], 1) | past,
            ended=self.ended,
        )

    def to(self, device: torch.device | str) -> Trajectories:
        """Move every array to `device`; copies to a GPU are asynchronous."""
        return self.each(partial(to_device, device=device))

    def each(self, change: Callable[[Tensor], Tensor]) -> Trajectories:
        """Apply `change` to every array, columns included."""
        return Trajectories(
            tokens=change(self.tokens),
            mask=change(self.mask),
            action_mask=change(self.action_mask),
            ended=change(self.ended),
            columns={name: change(array) for name, array in self.columns.items()},
        )

    @classmethod
    def stack(
        cls,
        tokens: Sequence[Sequence[int]],
        action_mask: Sequence[Sequence[bool]],
        *,
        ended: Sequence[bool] | None = None,
        pad_id: int = 0,
    ) -> Trajectories:
        """Pad ragged sequences on the right into one batch.

        Args:
            tokens: B sequences of token ids.
            action_mask: B sequences of booleans, of the same lengths as `tokens`.
            ended: B booleans; all True if omitted, as for complete demonstrations.
            pad_id: token id of padding; no result depends on it.

        Raises:
            ValueError: `action_mask` and `tokens` differ in length.
        """
        lengths, mask_lengths = [len(row) for row in tokens], [len(row) for row in action_mask]
        if lengths != mask_lengths:
            raise ValueError(
                f"sequences of {lengths} tokens with action masks of {mask_lengths}: lengths must be equal"
            )
        height, width = len(tokens), max(lengths, default=0)
        mask = torch.arange(width) < torch.tensor(lengths, dtype=torch.long)[:, None]
        ids, chosen = torch.full(mask.shape, pad_id), torch.zeros_like(mask)
        ids[mask] = torch.tensor(list(chain.from_iterable(tokens)), dtype=torch.long)
        chosen[mask] = torch.tensor(list(chain.from_iterable(action_mask)), dtype=torch.bool)
        done = torch.ones(height, dtype=torch.bool) if ended is None else torch.as_tensor(ended, dtype=torch.bool)
        return cls(tokens=ids, mask=mask, action_mask=chosen, ended=done)

    @classmethod
    def concat(cls, parts: Sequence[Trajectories]) -> Trajectories:
        """Concatenate batches, which must have the same columns, padding the narrower ones on the right."""
        width = max(part.tokens.shape[1] for part in parts)
        names = dict.fromkeys(name for part in parts for name in part.columns)

        def widened(array: Tensor, old: int) -> Tensor:
            is_narrow = old < width and array.shape[1:] == (old,)
            return torch.nn.functional.pad(array, (0, width - old)) if is_narrow else array

        def joined(pick: Callable[[Trajectories], Tensor]) -> Tensor:
            return torch.cat([widened(pick(part), part.tokens.shape[1]) for part in parts])

        return cls(
            tokens=joined(attrgetter("tokens")),
            mask=joined(attrgetter("mask")),
            action_mask=joined(attrgetter("action_mask")),
            ended=joined(attrgetter("ended")),
            columns={name: joined(itemgetter(name)) for name in names},
        )


def grouped(index: Tensor, size: int) -> Tensor:
    """Return the rows of the groups at `index`; group k has rows k * size to (k + 1) * size - 1: long[K * size]."""
    return (index[:, None] * size + torch.arange(size, device=index.device)).flatten()


def to_device(array: Tensor, device: torch.device | str) -> Tensor:
    """Return `array` on `device`.

    Copies from the host to an accelerator are asynchronous, through pinned memory; kernels on the same stream wait for
    them. All other copies block, because the host could otherwise read memory that has not been written yet.
    """
    if array.device.type == "cpu" and torch.device(device).type not in ("cpu", "meta"):
        return array.pin_memory().to(device, non_blocking=True)
    return array.to(device)


def tensor_on(device: torch.device | str, numbers: Sequence[object], dtype: torch.dtype = torch.long) -> Tensor:
    """Return a tensor of numbers, or of rows of them, on `device`, without blocking as `torch.tensor(...)` does."""
    return to_device(torch.tensor(numbers, dtype=dtype), device)


@attrs.frozen(eq=False)
class PolicyOutputs:
    """A policy's outputs for the chosen tokens of a batch; entries of other tokens are zero.

    Attributes:
        logprobs: float[B, T], log pi of each chosen token, at the temperature that was requested, 1 by default.
        values: float[B, T] or None, V before each chosen token; present if the policy has a value head.
        entropy: float[B, T] or None, entropy in nats of the distribution of each chosen token; only if requested.
        logits: float[N, V] or None, of the chosen tokens in row-major order, divided by the temperature; only if
            requested.
        heads: float[..., B, T] by name, the outputs of the heads that the algorithm brought (`rlcore.protocols.Head`).
    """

    logprobs: Tensor
    values: Tensor | None = None
    entropy: Tensor | None = None
    logits: Tensor | None = None
    heads: Mapping[str, Tensor] = attrs.field(factory=dict)

    def need(self, name: str) -> Tensor:
        """Return the output called `name`, one of this class's attributes or of a head; it must be present.

        Raises:
            ModelError: the policy did not return it.
        """
        output: Tensor | None = getattr(self, name) if name in _REQUESTS else self.heads.get(name)
        if output is None:
            how = _REQUESTS.get(name, "build it with run.build(heads={...}), with the head that computes it")
            raise ModelError(f"the policy returned no {name}: {how}")
        return output


_REQUESTS: Mapping[str, str] = {
    "values": "build it with run.build(value_head=True)",
    "entropy": "request it with policy.score(batch, entropy=True)",
    "logits": "request them with policy.score(batch, logits=True)",
}


@attrs.frozen(eq=False)
class Episodes(Trajectories):
    """B trajectories of several turns, with what was said and how each of them ended.

    The policy chose the tokens of its turns; the environment's are between them. The column `rewards` has the reward of
    each turn at its last chosen token. `rows`, `each` and `split` return plain trajectories.

    Attributes:
        outputs: B texts after the prompts, of both speakers.
        arguments: B values of each further argument of reward functions, such as `turns`.
        numbers: B values of each metric, such as `episode/turns`; None where it has none.
        failures: B texts, why an episode failed; empty if it did not. Failed episodes have no score.
    """

    outputs: Sequence[str] = ()
    arguments: Mapping[str, Sequence[Any]] = attrs.field(factory=dict)
    numbers: Mapping[str, Sequence[float | None]] = attrs.field(factory=dict)
    failures: Sequence[str] = ()

    @property
    def plain(self) -> Trajectories:
        """The trajectories alone."""
        return self.each(lambda array: array)


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


def has_samples(value: object) -> bool:
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
