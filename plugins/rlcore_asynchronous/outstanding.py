"""Rounds that are sampled ahead: what was asked for, under which weights, and what has arrived."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import torch

from rlcore.types import Prompt, Trajectories

Key = tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]
"""Token ids of the prompts, and the seeds of the rows."""


def key_of(prompts: Sequence[Prompt], seeds: Sequence[int]) -> Key:
    """Return what a round is found by: equal prompts with equal seeds are the same round."""
    return tuple(tuple(prompt.tokens) for prompt in prompts), tuple(int(seed) for seed in seeds)


@attrs.define(eq=False)
class Ahead:
    """A round that was submitted, or that a checkpoint contained.

    Attributes:
        key: what it is found by.
        version: the number of steps after which the weights were those that sample it.
        fetch: waits for its rows and returns them; only called once it returns.
    """

    key: Key
    version: int
    fetch: Callable[[], Trajectories]
    _rows: Trajectories | None = None

    @property
    def rows(self) -> Trajectories:
        """Return the rows, waiting for them if they have not arrived; they have a column `versions`, long[B]."""
        if self._rows is None:
            rows = self.fetch()
            versions = torch.full((len(rows),), self.version, device=rows.tokens.device)
            self._rows = rows.with_columns(versions=versions)
        return self._rows

    def record(self) -> dict[str, Any]:
        """Return the round as plain values and tensors, for a checkpoint; waits for the rows."""
        prompts, seeds = self.key
        return {
            "prompts": [list(tokens) for tokens in prompts], "seeds": list(seeds), "version": self.version,
            "rows": attrs.asdict(self.rows.to("cpu"), recurse=False),
        }  # fmt: skip


class Restored:
    """The rounds of a checkpoint, by the rows of all processes.

    Args:
        records: what `Ahead.record` returned on every process.
    """

    def __init__(self, records: Sequence[Mapping[str, Any]] = ()) -> None:
        self._whole: dict[Key, Ahead] = {}
        self._rows: dict[tuple[tuple[int, ...], int], tuple[Trajectories, int]] = {}
        for record in records:
            key = tuple(map(tuple, record["prompts"])), tuple(record["seeds"])
            rows = Trajectories(**record["rows"])
            self._whole[key] = Ahead(key, record["version"], partial(_given, rows))
            for number, place in enumerate(zip(*key, strict=True)):
                self._rows[place] = rows, number

    def find(self, key: Key, device: torch.device) -> Ahead | None:
        """Return a round; None if the checkpoint did not have all of its rows.

        Rows that other processes sampled before are found too, in a run of another number of processes.
        """
        places = list(zip(*key, strict=True))
        if not all(place in self._rows for place in places):
            return None
        if key in self._whole:
            found = self._whole[key]
            return Ahead(key, found.version, lambda: found.fetch().to(device))
        parts = [part.rows(torch.tensor([number])) for part, number in map(self._rows.__getitem__, places)]
        version = int(parts[0]["versions"][0])
        return Ahead(key, version, lambda: Trajectories.concat(parts).to(device))


def _given(rows: Trajectories) -> Trajectories:
    return rows
