"""What sampling writes down, token by token, and the trajectories it becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import attrs
import torch
from torch import Tensor

from rlcore.types import Prompt, Trajectories


@attrs.frozen(eq=False)
class Choice:
    """Hold one step's tokens of K sequences.

    Attributes:
        tokens: long[K].
        columns: float[K] each, what the trajectories' columns of these names say of the tokens.
    """

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
        self.tokens = torch.zeros(self._shape, dtype=torch.long, device=device)
        self.ended = torch.zeros(num_prompts, dtype=torch.bool, device=device)
        self._real = torch.zeros(self._shape, dtype=torch.bool, device=device)
        self._columns: dict[str, Tensor] = {}
        for name in names:
            self._column(name)

    def write(self, rows: Tensor, live: Tensor, at: Tensor, choice: Choice) -> None:
        """Write tokens number `at` of the prompts at `rows`, long[K] each; those that are live, bool[K], count."""
        self.tokens[rows, at] = choice.tokens
        self._real[rows, at] = live
        for name, column in choice.columns.items():
            self._column(name)[rows, at] = column.float()

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
        chosen, real, ended, drawn = self.tokens, self._real, self.ended, self._columns
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
