"""Scripted rollouts, independent of the policy and the number of processes, with or without extra padding."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from rlcore.dropout import eval_mode
from rlcore.protocols import Policy
from rlcore.ranks import Ranks
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories, training_rows
from rlcore_testing.small import EOS, LETTERS

END_SHARE = 4
"""One of this many tokens is EOS, so that lengths differ and some sequences end."""
GARBAGE = 3.0
"""Value of columns at padding."""

_stack = Trajectories.stack


class Scripted:
    """A sampler (`rlcore.protocols.Sampler`) whose continuations depend on the prompt only.

    The k-th continuation of a prompt is random with a seed computed from the prompt and k; k counts over all processes,
    in the order of a single process.

    Args:
        scored: add the columns `logprobs` and `values` of the policy.
        padded: add padding with random tokens on both sides of every sequence.
    """

    def __init__(self, *, scored: bool, padded: bool) -> None:
        self.scored, self.padded = scored, padded
        self.ranks: Ranks | None = None
        self._counts: Counter[tuple[int, ...]] = Counter()

    def __call__(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        sampling: SamplingConfig,
        *,
        generator: torch.Generator | None = None,  # noqa: ARG002  a sampler's signature
    ) -> Trajectories:
        """Continue each prompt once."""
        continuations = [
            _draw(prompt.tokens, number, sampling.max_new_tokens)
            for prompt, number in zip(prompts, self._numbers(prompts), strict=True)
        ]
        batch = _stack(
            [[*prompt.tokens, *tokens] for prompt, tokens in zip(prompts, continuations, strict=True)],
            [
                [False] * len(prompt.tokens) + [True] * len(tokens)
                for prompt, tokens in zip(prompts, continuations, strict=True)
            ],
            ended=[tokens[-1] == EOS for tokens in continuations],
        ).to(policy.device)
        if self.scored:
            with torch.no_grad(), eval_mode(policy.module):
                outputs = policy.score(batch, temperature=sampling.policy_temperature)
            values = {} if outputs.values is None else {"values": outputs.values}
            batch = batch.with_columns(logprobs=outputs.logprobs, **values)
        return with_padding(batch) if self.padded else batch

    def _numbers(self, prompts: Sequence[Prompt]) -> list[int]:
        """Return how many continuations of each prompt all processes have sampled before."""
        rank = self.ranks.rank if self.ranks is not None else 0
        mine = [(at, rank, prompt.tokens) for at, prompt in enumerate(prompts)]
        numbers = []
        for _, owner, tokens in sorted(self.ranks.gather(mine) if self.ranks is not None else mine):
            if owner == rank:
                numbers.append(self._counts[tokens])
            self._counts[tokens] += 1
        return numbers


def _draw(prompt: tuple[int, ...], number: int, longest: int) -> list[int]:
    generator = torch.Generator().manual_seed(zlib.crc32(repr((prompt, number)).encode()))
    tokens: list[int] = torch.randint(len(LETTERS), (longest,), generator=generator).tolist()
    ends = torch.randint(END_SHARE, (longest,), generator=generator).tolist()
    if 0 in ends:
        return [*tokens[: ends.index(0)], EOS]
    return tokens


def with_padding(batch: Trajectories) -> Trajectories:
    """Return the sequences in a wider batch, each starting at a different column, with arbitrary tokens as padding."""
    lengths: list[int] = batch.mask.sum(1).tolist()
    width = max(lengths) + 5
    starts = [1 + row * 3 % (width - length) for row, length in enumerate(lengths)]

    def move(array: Tensor, fill: Tensor | float) -> Tensor:
        if array.dim() < 2:
            return array
        moved = torch.empty(len(batch), width, dtype=array.dtype, device=array.device)
        moved[:] = fill
        for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
            moved[row, start : start + length] = array[row][batch.mask[row]]
        return moved

    return Trajectories(
        tokens=move(batch.tokens, torch.arange(width) % 2 * EOS),
        mask=move(batch.mask, 0),
        action_mask=move(batch.action_mask, 0),
        ended=batch.ended,
        columns={name: move(column, GARBAGE) for name, column in batch.columns.items()},
    )


@contextmanager
def stacking_wider() -> Iterator[None]:
    """Let `Trajectories.stack` pad both sides of every sequence, and `stack_groups` add a filler row to every group."""

    def stack(_: type[Trajectories], *arguments: Any, **options: Any) -> Trajectories:
        return with_padding(_stack(*arguments, **options))

    original, rows_of_group = Trajectories.__dict__["stack"], vars(training_rows)["_rows_of_group"]
    setattr(training_rows, "_rows_of_group", lambda groups: rows_of_group(groups) + 1)  # noqa: B010  the same
    setattr(Trajectories, "stack", classmethod(stack))  # noqa: B010  type checkers reject assignment to a method
    try:
        yield
    finally:
        setattr(Trajectories, "stack", original)  # noqa: B010  the same
        setattr(training_rows, "_rows_of_group", rows_of_group)  # noqa: B010  the same
