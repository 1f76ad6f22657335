"""The responses of the last rounds, each distinct one once, with the number of times it was sampled."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any

import attrs

from rlcore.types import Trajectories
from rlcore_rft.loss import first_indices


class History:
    """Hold the scored responses of the last `num_rounds` rounds, on the CPU; older ones are dropped.

    It has the columns `prompts` (long[B], the index of the prompt), `scores` (float[B]) and `counts` (long[B]).
    """

    def __init__(self, num_rounds: int) -> None:
        self._rounds: deque[Trajectories] = deque(maxlen=num_rounds)

    def add(self, batch: Trajectories) -> None:
        """Add a round, with columns `prompts` and `scores`; its other columns are not kept."""
        batch = attrs.evolve(batch, columns={name: batch[name] for name in ("prompts", "scores")}).to("cpu")
        prompts, scores = batch["prompts"].tolist(), batch["scores"].tolist()
        indices, counts = first_indices(list(zip(prompts, scores, sequences(batch), strict=True)))
        self._rounds.append(batch.rows(indices).with_columns(counts=counts))

    @property
    def responses(self) -> Trajectories:
        """Return all responses, oldest first; one that was sampled in several rounds appears once for each."""
        return Trajectories.concat(list(self._rounds))

    def state_dict(self) -> dict[str, Any]:
        """Return the responses of all rounds."""
        return {"rounds": [attrs.asdict(batch, recurse=False) for batch in self._rounds]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned; if it has more rounds than fit, the oldest are dropped."""
        self._rounds.clear()
        self._rounds.extend(Trajectories(**batch) for batch in state["rounds"])


def distinct(batch: Trajectories) -> Trajectories:
    """Return each distinct sequence of tokens once, whatever its columns are."""
    return batch.rows(first_indices(sequences(batch))[0])


def sequences(batch: Trajectories) -> list[Hashable]:
    """Return a key of each sequence: its tokens without padding, and which of them were chosen."""
    keys: list[Hashable] = []
    for tokens, chosen, real in zip(batch.tokens.cpu(), batch.action_mask.cpu(), batch.mask.cpu(), strict=True):
        keys.append((tokens[real].numpy().tobytes(), chosen[real].numpy().tobytes()))
    return keys
