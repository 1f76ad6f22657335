"""The order in which prompts and samples are visited: shuffled anew each pass, repeatable, and able to go on."""

from __future__ import annotations

from typing import Any

import torch

from rlcore.errors import CheckpointError


class Order:
    """Deal indices 0..count-1, each once a pass, in an order that only the seed and the pass decide.

    All processes deal the same; which share of it is theirs is not decided here.
    """

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed, self.position = count, seed, 0
        self._pass, self._shuffled = -1, torch.empty(0, dtype=torch.long)

    @property
    def epoch(self) -> float:
        """Count the passes, with the part of the present one."""
        return self.position / self.count

    def take(self, num: int) -> list[int]:
        """Deal the next `num` indices, going on into the next pass where this one ends."""
        indices: list[int] = []
        while len(indices) < num:
            number, start = divmod(self.position, self.count)
            piece = self._permutation(number)[start : start + num - len(indices)]
            indices += piece.tolist()
            self.position += len(piece)
        return indices

    def take_within_pass(self, num: int) -> list[int]:
        """Deal at most `num` indices, fewer where the pass ends."""
        return self.take(min(num, self.count - self.position % self.count))

    def _permutation(self, number: int) -> torch.Tensor:
        if number != self._pass:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
            self._pass, self._shuffled = number, torch.randperm(self.count, generator=generator)
        return self._shuffled

    def state_dict(self) -> dict[str, Any]:
        """Return how many have been dealt, of how many."""
        return {"position": self.position, "count": self.count, "seed": self.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after the indices dealt before; the seed of then is kept, so that the order is.

        Raises:
            CheckpointError: the number of prompts or samples has changed since.
        """
        if state["count"] != self.count:
            raise CheckpointError(
                f"the checkpoint was written with {state['count']} prompts or samples, now there are {self.count}: "
                "resume with the data it was trained on, or start a new run from its model folder"
            )
        self.position, self.seed, self._pass = state["position"], state["seed"], -1
