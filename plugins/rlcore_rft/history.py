"""The responses of the last rounds: each distinct one is held once, with how often it was sampled."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any

import attrs

from rlcore.types import Trajectories
from rlcore_rft.loss import first_places


class History:
    """Hold the scored responses of the last `num_rounds` rounds, on the CPU; older ones are forgotten.

    It has the columns `prompts` (long[B], which prompt a response is to), `scores` (float[B]) and `counts` (long[B]).
    """

    def __init__(self, num_rounds: int) -> None:
        self._rounds: deque[Trajectories] = deque(maxlen=num_rounds)

    def add(self, batch: Trajectories) -> None:
        """Add a round, with columns `prompts` and `scores`; what the sampler put beside them is not kept."""
        batch = attrs.evolve(batch, columns={name: batch[name] for name in ("prompts", "scores")}).to("cpu")
        prompts, scores = batch["prompts"].tolist(), batch["scores"].tolist()
        places, counts = first_places(list(zip(prompts, scores, sequences(batch), strict=True)))
        self._rounds.append(batch.rows(places).with_columns(counts=counts))

    @property
    def responses(self) -> Trajectories:
        """Return everything held, oldest first; a response that came in several rounds is there once for each."""
        return Trajectories.concat(list(self._rounds))

    def state_dict(self) -> dict[str, Any]:
        """Return what is held."""
        return {"rounds": [attrs.asdict(batch, recurse=False) for batch in self._rounds]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to where `state_dict` was taken; of more rounds than are held now, the oldest are forgotten."""
        self._rounds.clear()
        self._rounds.extend(Trajectories(**batch) for batch in state["rounds"])


def distinct(batch: Trajectories) -> Trajectories:
    """Return each sequence of tokens once, whatever is beside it."""
    return batch.rows(first_places(sequences(batch))[0])


def sequences(batch: Trajectories) -> list[Hashable]:
    """Say what makes each sequence the one it is: its real tokens, and which of them were chosen."""
    keys: list[Hashable] = []
    for tokens, chosen, real in zip(batch.tokens.cpu(), batch.action_mask.cpu(), batch.mask.cpu(), strict=True):
        keys.append((tokens[real].numpy().tobytes(), chosen[real].numpy().tobytes()))
    return keys
