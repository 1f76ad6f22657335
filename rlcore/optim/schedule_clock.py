"""Advance a learning-rate schedule by the progress of a run, whatever number of optimizer steps the run makes."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from torch.optim.lr_scheduler import LRScheduler


class ScheduleClock:
    """The position of a learning-rate schedule, counted in optimizer steps.

    * During warm-up, the first `num_warmup` optimizer steps, the position is the number of optimizer steps made.
    * After it, the position is the number of optimizer steps planned so far: after s steps of the run at least
      s * `updates_per_step`, however many of them were skipped or left out.

    The two are the same while every planned optimizer step is made.

    Args:
        scheduler: the schedule; its `step()` advances the position by one.
        num_warmup: length of the warm-up.
        updates_per_step: optimizer steps planned for each step of the run.
        steps_done: returns the number of steps of the run that are done.
        options: plain values that decide the course of the schedule beside its position; a saved state of a schedule
            with other options is replaced by the state that this schedule has at the same progress.
    """

    def __init__(
        self,
        scheduler: LRScheduler,
        *,
        num_warmup: int,
        updates_per_step: int,
        steps_done: Callable[[], int],
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._scheduler, self._num_warmup = scheduler, num_warmup
        self._updates_per_step, self._steps_done = updates_per_step, steps_done
        self._options = {**(options or {}), "updates_per_step": updates_per_step}
        self._first = copy.deepcopy(scheduler.state_dict())
        self._stride = 1.0
        self.num_made, self.position, self.planned = 0, 0, 0.0

    def spread(self, num_updates: int) -> None:
        """Spread the optimizer steps planned for the current step of the run over the `num_updates` it will make."""
        self._catch_up()
        self._stride = self._updates_per_step / num_updates

    def learning_rate(self) -> float:
        """Return the learning rate of the next optimizer step."""
        self._catch_up()
        return float(self._scheduler.get_last_lr()[0])

    def advance(self) -> None:
        """Count an optimizer step."""
        self.num_made += 1
        self.planned += self._stride
        self._move()

    def _catch_up(self) -> None:
        self.planned = max(self.planned, float(self._steps_done() * self._updates_per_step))
        self._move()

    def _move(self) -> None:
        target = self.num_made if self.num_made < self._num_warmup else int(self.planned + 1e-6)
        with warnings.catch_warnings():
            # A step of the run may leave out all of its optimizer steps, also the first step of all.
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step\\(\\)` before")
            while self.position < target:
                self._scheduler.step()
                self.position += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the schedule's state, the position, and the options of the schedule."""
        position = {"num_made": self.num_made, "position": self.position, "planned": self.planned}
        return {"scheduler": self._scheduler.state_dict(), **position, "options": self._options}

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Restore the state that `state_dict` returned.

        Returns:
            Whether the schedule has other options than the one that was saved. Then it is stepped from its beginning to
            the saved progress, which sets the learning rate of the optimizer, so that must have its first one.
        """
        then = state.get("options", self._options)
        self.num_made, self.position, self.planned = state["num_made"], state["position"], state["planned"]
        if then == self._options:
            self._scheduler.load_state_dict(state["scheduler"])
            return False
        self._scheduler.load_state_dict(copy.deepcopy(self._first))
        self.position, self.planned = 0, self.planned * self._updates_per_step / then["updates_per_step"]
        self._move()
        return True
