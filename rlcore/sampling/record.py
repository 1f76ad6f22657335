"""What sampling writes down, token by token, and the trajectories it becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from rlcore.types import Prompt, Trajectories

SETTLE_EVERY = 64
"""Steps whose choices are kept as they came before they are put into their places together."""


class SampledTokens(NamedTuple):
    """Hold one step's tokens of K sequences.

    Attributes:
        tokens: long[K].
        columns: float[K] each, what the trajectories' columns of these names say of the tokens.
    """

    tokens: Tensor
    columns: Mapping[str, Tensor]


class _StepTokens(NamedTuple):
    """Hold one step's tokens of K sequences, and where they belong: `Record.write`."""

    rows: Tensor
    live: Tensor
    at: Tensor
    tokens: Tensor
    columns: Mapping[str, Tensor]


class Record:
    """Gather the continuations of N prompts, in the order the prompts were given, whatever order they are read in.

    Args:
        num_prompts: N.
        num_tokens: tokens a continuation has at most, M.
        device: where the policy is.
        names: columns there are even if nothing is written.
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
        """Write tokens number `at` of the prompts at `rows`, long[K] each; those that are live, bool[K], count."""
        if self._unsettled and self._unsettled[0].columns.keys() != sampled.columns.keys():
            self._settle()
        # A decoder may say the next step's where it said this one's.
        columns = {name: column.to(torch.float32, copy=True) for name, column in sampled.columns.items()}
        self._unsettled.append(_StepTokens(rows, live, at, sampled.tokens, columns))
        if len(self._unsettled) == SETTLE_EVERY:
            self._settle()

    def end(self, rows: Tensor, ended: Tensor) -> None:
        """Take down which of the prompts at `rows`, long[K], have ended with their newest token: bool[K]."""
        self._endings.append((rows, ended))

    def chosen(self, row: int, begin: int, end: int) -> list[int]:
        """List the tokens of a prompt from number `begin` to before `end`."""
        self._settle()
        tokens: list[int] = self._tokens[row, begin:end].tolist()
        return tokens

    def _settle(self) -> None:
        """Put what was written into its places, of many steps together: each copy costs a call, however small it is."""
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
        """Put continuations behind their prompts.

        Args:
            prompts: of the continuations that are wanted.
            pad_id: fills shorter sequences on the right.
            rows: long[K], whose continuations are wanted; all if left out.
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
