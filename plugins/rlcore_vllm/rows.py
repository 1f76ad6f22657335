"""Rows of a round from the answers of a server: seeds, ends, trajectories, and parts that are reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch

from rlcore.errors import DataError
from rlcore.protocols import Policy
from rlcore.types import Prompt, Trajectories
from rlcore_transformers.sampling.stop_sequences import StopSequences

CONTEXT = 4
"""Preceding tokens that are decoded with a text, because some tokenizers decode the first token differently."""


def seeds_of(count: int, given: Sequence[int] | None, generator: torch.Generator | None) -> Sequence[int]:
    """Return the seeds of rows: those given, or drawn ones in 0..2^63-2, by torch's default generator if there is none.

    Raises:
        DataError: there is another number of them.
    """
    if given is None:
        device = torch.device("cpu") if generator is None else generator.device
        given = torch.randint(2**63 - 1, (count,), generator=generator, device=device).tolist()
    if len(given) != count:
        raise DataError(f"row_seeds: has {len(given)} seeds for {count} prompts; give one for each prompt")
    return given


def stop_end(prompt: Sequence[int], tokens: Sequence[int], stops: StopSequences | None) -> int | None:
    """Return the number of tokens through the one that completes a stop sequence; None if none is completed."""
    for end in range(1, len(tokens) + 1 if stops is not None else 0):
        if stops is not None and stops.completed([tokens[end - 1]], partial(_window, prompt, tokens[:end], stops.tail)):
            return end
    return None


def _window(prompt: Sequence[int], tokens: Sequence[int], tail: int, _row: int) -> tuple[list[int], list[int]]:
    """Return the last `tail` new tokens, after the CONTEXT tokens that precede them."""
    begin = max(0, len(tokens) - tail)
    return [*prompt[-CONTEXT:], *tokens[:begin]][-CONTEXT:], list(tokens[begin:])


def stack_rows(
    policy: Policy, prompts: Sequence[Prompt], rows: Sequence[Sequence[int]], ended: Sequence[bool]
) -> Trajectories:
    """Return prompts and their completions, on the CPU."""
    pad_id = policy.tokenizer.pad_token_id
    return Trajectories.stack(
        [(*prompt.tokens, *row) for prompt, row in zip(prompts, rows, strict=True)],
        [[False] * len(prompt.tokens) + [True] * len(row) for prompt, row in zip(prompts, rows, strict=True)],
        ended=ended,
        pad_id=pad_id if isinstance(pad_id, int) else 0,
    )


def report_parts(
    rows: Iterable[int],
    batch_of: Callable[[Sequence[int]], Trajectories],
    size: int,
    on_batch: Callable[[list[int], Trajectories], None] | None,
) -> None:
    """Call `on_batch` with every `size` rows that are finished, in the order in which they are, and with the rest.

    Args:
        rows: the indices of rows as they are finished; all are taken, also without `on_batch`.
        batch_of: returns the trajectories of finished rows.
        size: rows of a part.
        on_batch: as `rlcore.protocols.Sampler` describes it.
    """
    finished: list[int] = []
    for row in rows:
        finished.append(row)
        if on_batch is not None and len(finished) >= size:
            on_batch(sorted(finished), batch_of(sorted(finished)))
            finished = []
    if on_batch is not None and finished:
        on_batch(sorted(finished), batch_of(sorted(finished)))
