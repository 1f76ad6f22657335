"""Record of the sampled tokens and their columns, and its conversion to trajectories.

Also in this file: state of the sequences that are decoded together: their lengths, limits and newest tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import attrs
import torch
from torch import Tensor

from rlcore.types import Prompt, Trajectories, tensor_on

SETTLE_EVERY = 64
"""Number of decoding steps buffered before they are written to the record in one indexing call."""


class SampledTokens(NamedTuple):
    """Sampled tokens of K sequences at one decoding step.

    Attributes:
        tokens: long[K].
        columns: float[K] each, values of the tokens for the trajectories' columns, such as `logprobs`.
    """

    tokens: Tensor
    columns: Mapping[str, Tensor]


class _StepTokens(NamedTuple):
    """Arguments of one buffered call of `Record.write`."""

    rows: Tensor
    live: Tensor
    at: Tensor
    tokens: Tensor
    columns: Mapping[str, Tensor]


class Record:
    """Continuations of N prompts, in the order of the prompts, independent of the decoding order.

    Args:
        num_prompts: N.
        num_tokens: M, maximum number of tokens of a continuation.
        device: the policy's device.
        names: columns that exist even if nothing is written to them.
    """

    def __init__(self, num_prompts: int, num_tokens: int, device: torch.device, names: Sequence[str]) -> None:
        self._shape, self._device = (num_prompts, num_tokens), device
        self._tokens = torch.zeros(self._shape, dtype=torch.long, device=device)
        self._ended = torch.zeros(num_prompts, dtype=torch.bool, device=device)
        self._real = torch.zeros(self._shape, dtype=torch.bool, device=device)
        self._unsettled: list[_StepTokens] = []
        self._endings: list[tuple[Tensor, Tensor]] = []
        self._columns: dict[str, Tensor] = {}
        for name in names:
            self._column(name)

    def write(self, rows: Tensor, live: Tensor, at: Tensor, sampled: SampledTokens) -> None:
        """Write tokens number `at` of the prompts at `rows`, long[K] each; only `live` tokens, bool[K], are kept."""
        if self._unsettled and self._unsettled[0].columns.keys() != sampled.columns.keys():
            self._settle()
        # A copy, because a decoder may write the next step's outputs to the same memory.
        columns = {name: column.to(torch.float32, copy=True) for name, column in sampled.columns.items()}
        self._unsettled.append(_StepTokens(rows, live, at, sampled.tokens, columns))
        if len(self._unsettled) == SETTLE_EVERY:
            self._settle()

    def end(self, rows: Tensor, ended: Tensor) -> None:
        """Mark the prompts at `rows`, long[K], that ended with their newest token: bool[K]."""
        self._endings.append((rows, ended))

    @property
    def num_tokens(self) -> int:
        """Return the maximum number of tokens of a continuation."""
        return self._shape[1]

    def chosen(self, row: int, begin: int, end: int) -> list[int]:
        """Return the chosen tokens `begin` to `end` (exclusive) of the prompt at `row`."""
        self._settle()
        tokens: list[int] = self._tokens[row, begin:end].tolist()
        return tokens

    def _settle(self) -> None:
        """Write all buffered steps to the record, in one indexing call per tensor, because small calls are slow."""
        if self._endings:
            rows, ended = (torch.cat(each) for each in zip(*self._endings, strict=True))
            self._ended.index_put_((rows,), ended, accumulate=True)
            self._endings.clear()
        if self._unsettled:
            steps, self._unsettled = self._unsettled, []
            rows, at = torch.cat([step.rows for step in steps]), torch.cat([step.at for step in steps])
            self._tokens[rows, at] = torch.cat([step.tokens for step in steps])
            self._real[rows, at] = torch.cat([step.live for step in steps])
            for name in steps[0].columns:
                self._column(name)[rows, at] = torch.cat([step.columns[name] for step in steps])

    def _column(self, name: str) -> Tensor:
        if name not in self._columns:
            self._columns[name] = torch.zeros(self._shape, device=self._device)
        return self._columns[name]

    def trajectories(self, prompts: Sequence[Prompt], pad_id: int, rows: Tensor | None = None) -> Trajectories:
        """Return trajectories of prompts and their continuations.

        Args:
            prompts: K prompts, those at `rows`.
            pad_id: pads shorter sequences on the right.
            rows: long[K], indices of the prompts; all N by default.
        """
        self._settle()
        chosen, real, ended, drawn = self._tokens, self._real, self._ended, self._columns
        if rows is not None:
            chosen, real, ended = chosen[rows], real[rows], ended[rows]
            drawn = {name: column[rows] for name, column in drawn.items()}
        before = torch.tensor([len(prompt.tokens) for prompt in prompts], dtype=torch.long, device=self._device)[
            :, None
        ]
        after = before + real.sum(1, keepdim=True)
        columns = torch.arange(int(after.max()) if len(prompts) else 0, device=self._device)[None]
        mask, action_mask = columns < after, (columns >= before) & (columns < after)
        tokens = torch.full(mask.shape, pad_id, dtype=torch.long, device=self._device)
        read = list(chain.from_iterable(prompt.tokens for prompt in prompts))
        tokens[columns < before] = torch.tensor(read, dtype=torch.long, device=self._device)
        tokens[action_mask] = chosen[real]
        widened = {}
        for name, column in drawn.items():
            widened[name] = torch.zeros(mask.shape, device=self._device)
            widened[name][action_mask] = column[real]
        return Trajectories(tokens=tokens, mask=mask, action_mask=action_mask, ended=ended, columns=widened)


@attrs.define(eq=False)
class Running:
    """K running sequences, in the decoder's order.

    Sequences may start at different steps. The host counts decoding steps (`passes`), from which the token index of
    each sequence (`at`) and the end of its limit follow without reading from the device.

    Attributes:
        indices: K indices of their prompts.
        rows: long[K], `indices` on the device.
        started: long[K], number of steps before each sequence's first token.
        cut_at: long[K], number of steps after which each sequence reaches its limit.
        tokens: long[K], the newest token of each.
        live: bool[K], True for sequences that have not ended; the tokens of the others are discarded.
        passes: number of decoding steps so far.
        last_join: number of steps before the most recent sequences joined.
        cuts: all values of `cut_at`, on the host.
    """

    indices: list[int]
    rows: Tensor
    started: Tensor
    cut_at: Tensor
    tokens: Tensor
    live: Tensor
    passes: int
    last_join: int
    cuts: set[int]

    @classmethod
    def begin(
        cls, indices: Sequence[int], limits: Sequence[int], tokens: Sequence[int], device: torch.device, passes: int = 0
    ) -> Running:
        """Start K sequences.

        Args:
            indices: K indices of their prompts.
            limits: maximum number of new tokens of each.
            tokens: the last token of each prompt.
            device: the decoder's device.
            passes: number of decoding steps before, if they join running sequences.
        """
        cuts = [passes + limit for limit in limits]
        rows, cut_at, last = (tensor_on(device, numbers) for numbers in (indices, cuts, tokens))
        started = torch.full_like(rows, passes)
        live = torch.ones_like(rows, dtype=torch.bool)
        return cls(list(indices), rows, started, cut_at, last, live, passes, passes, set(cuts))

    @property
    def at(self) -> Tensor:
        """Return the number of new tokens of each sequence: long[K]."""
        return self.passes - self.started

    @property
    def is_cut(self) -> bool:
        """Return whether a sequence may have reached its limit with the newest token."""
        return self.passes in self.cuts

    @property
    def is_over(self) -> bool:
        """Return whether every sequence has reached its limit."""
        return self.passes >= max(self.cuts)

    def advance(self, tokens: Tensor, ended: Tensor) -> None:
        """Store the newest tokens, long[K], and update `live` with `ended`, bool[K], and the limits."""
        self.passes += 1
        self.tokens, self.live = tokens, self.live & ~ended
        if self.is_cut:
            self.live = self.live & (self.cut_at > self.passes)

    def going(self) -> list[int]:
        """Return the positions of the live sequences; this synchronises with the device."""
        return [position for position, is_live in enumerate(self.live.tolist()) if is_live]

    def keep(self, going: Sequence[int], rows: Tensor) -> list[int]:
        """Keep the sequences at `going` (`rows`, long[L], on the device); return the prompt indices of the others."""
        left = set(self.indices)
        self.indices = [self.indices[position] for position in going]
        for name in ("rows", "started", "cut_at", "tokens", "live"):
            setattr(self, name, getattr(self, name)[rows])
        return sorted(left.difference(self.indices))

    def join(self, others: Running) -> None:
        """Append other sequences."""
        self.indices += others.indices
        for name in ("rows", "started", "cut_at", "tokens", "live"):
            setattr(self, name, torch.cat([getattr(self, name), getattr(others, name)]))
        self.last_join, self.cuts = others.last_join, self.cuts | others.cuts
