"""The trainer of an asynchronous run: it submits rounds between steps and keeps them in its state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlcore.types import Metrics
from rlcore_asynchronous.sampler import AheadSampler

KEY = "asynchronous"
"""Key of the rounds in a trainer's state."""


class AheadTrainer:
    """Calls a trainer (`rlcore.protocols.Trainer`), and before each of its steps submits the rounds that follow.

    Attributes are those of the trainer inside.

    Args:
        trainer: a `ForeseeingTrainer`.
        sampler: the sampler of its run.
    """

    def __init__(self, trainer: Any, sampler: AheadSampler) -> None:
        self.__wrapped__, self._sampler, self._run = trainer, sampler, sampler.run

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    def steps(self) -> Iterator[Metrics]:
        """Yield the trainer's metrics with those of the age of its samples."""
        inner = self.__wrapped__.steps()
        while True:
            self._sampler.begin_step(self.__wrapped__.upcoming(self._reach()))
            try:
                metrics = next(inner)
            except StopIteration:
                return
            yield metrics | self._sampler.end_step()

    def _reach(self) -> int:
        """Return the number of steps whose rounds are submitted by now, the next one included.

        A run that ends with a checkpoint may be resumed for more steps, whose rounds it has then sampled as if it had
        not ended.
        """
        reach: int = self._run.config.run.asynchronous + 1
        if self._run.total_steps is None or self._run.config.checkpoint.at_end:
            return reach
        left: int = self._run.total_steps - self._run.step
        return max(1, min(reach, left))

    def state_dict(self) -> dict[str, Any]:
        """Return the trainer's state and the rounds that were submitted; waits for them."""
        state = self.__wrapped__.state_dict()
        return {**state, KEY: self._sampler.state_dict()} if isinstance(state, dict) else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned, or one of a run that was not asynchronous."""
        state = dict(state)
        rounds = state.pop(KEY, None)
        self.__wrapped__.load_state_dict(state)
        if rounds is not None:
            self._sampler.load_state_dict(rounds)
