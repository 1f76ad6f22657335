"""Shuffled index sampler for prompts and samples: reshuffled each pass, reproducible and resumable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rlcore.errors import CheckpointError
from rlcore.types import State


class Order:
    """Shuffled index sampler: returns the indices 0..count-1 once per pass, in an order fixed by seed and pass.

    The order is the same on all ranks; the caller splits it between them.

    Args:
        count: number of prompts or samples.
        seed: seed of the shuffles.
    """

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed, self.position = count, seed, 0
        self._pass, self._shuffled = -1, torch.empty(0, dtype=torch.long)

    @property
    def epoch(self) -> float:
        """Return the number of passes, including the fraction of the current one."""
        return self.position / self.count

    def num_batches(self, size: int) -> int:
        """Return the number of batches of a pass, of which the last one may be smaller."""
        return -(-self.count // size)

    def take(self, num: int) -> list[int]:
        """Return the next `num` indices, continuing into the next pass if this one ends."""
        indices: list[int] = []
        while len(indices) < num:
            number, start = divmod(self.position, self.count)
            piece = self._permutation(number)[start : start + num - len(indices)]
            indices += piece.tolist()
            self.position += len(piece)
        return indices

    def take_within_pass(self, num: int) -> list[int]:
        """Return the next `num` indices, or fewer if the pass ends before."""
        return self.take(min(num, self.count - self.position % self.count))

    def metrics(self) -> dict[str, float]:
        """Return metrics of the rows taken since the last call, for those of the step."""
        return {}

    def _permutation(self, number: int) -> torch.Tensor:
        if number != self._pass:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
            self._pass, self._shuffled = number, torch.randperm(self.count, generator=generator)
        return self._shuffled

    def state_dict(self) -> State:
        """Return the position, the count and the seed."""
        return {"position": self.position, "count": self.count, "seed": self.seed}

    def load_state_dict(self, state: State) -> None:
        """Continue at the saved position, with the saved seed and therefore the same order.

        Raises:
            CheckpointError: the number of prompts or samples has changed, or the state names another `order`.
        """
        if "order" in state or state.get("count") != self.count:
            raise CheckpointError(
                f"the checkpoint was written with {state.get('order', state.get('count', 'streamed'))} prompts or "
                f"samples, now there are {self.count}: resume with the original data, or start a new run from its model"
            )
        self.position, self.seed, self._pass = state["position"], state["seed"], -1


class OrderedRows(list[Any]):
    """Rows of several sources that a trainer takes in an order of their own, such as a mixture by weights.

    A pipeline returns a subclass with both methods. They are not abstract, since Python checks that of no `list`.
    """

    def order(self, rows: Sequence[object], seed: int) -> Order:
        """Return the order of `rows`: these rows, or what a trainer made of them by leaving out or splitting some."""
        raise NotImplementedError

    def parts(self) -> Mapping[str, Sequence[Any]]:
        """Return the rows of each source by its name."""
        raise NotImplementedError
