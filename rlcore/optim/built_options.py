"""Restores an optimizer with the options of the present configuration, also where the saved one had others.

A saved state contains the options of its optimizer (`param_groups`). What the configuration sets is that of the present
run; what an optimizer changes in its steps, such as a step size that it has learned, is the saved one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

from rlcore.config import unstructure
from rlcore.errors import CheckpointError
from rlcore.optim.optimization import Optimization

PARAMETERS = "params"


class BuiltOptions:
    """The options of an optimizer as they are when it has been built, with its learning-rate schedule.

    Args:
        built: the optimizer's name and options.
        optimizer: the optimizer, before its first step.
        num_matrices: how many of its parameters, in their order, are matrices; the others are vectors.
    """

    def __init__(self, built: Optimization, optimizer: Optimizer, num_matrices: int) -> None:
        self._built, self._optimizer, self._num_matrices = built, optimizer, num_matrices
        self._groups = [_options(group) for group in optimizer.param_groups]
        self._counts = [len(group[PARAMETERS]) for group in optimizer.param_groups]
        self._begun = {name: _first(value) for kept in optimizer.state.values() for name, value in kept.items()}

    @property
    def record(self) -> dict[str, Any]:
        """Return plain values to compare with those of a resumed run."""
        return {"groups": unstructure(self._groups), "begun": self._begun}

    def check_parameters(self, saved: dict[str, Any]) -> None:
        """Check that a saved state of the optimizer is of as many parameters.

        Raises:
            CheckpointError: it is not.
        """
        counts = [len(group[PARAMETERS]) for group in saved["param_groups"]]
        if counts != self._counts:
            raise CheckpointError(
                f"{self._built.where}: the optimizer of the checkpoint trains {sum(counts)} parameters, and this run "
                f"{sum(self._counts)}, because other ones are frozen: resume with the original options of the section "
                "model, such as unfrozen_layers, or start a new run from the checkpoint's model folder"
            )

    def reset(self) -> None:
        """Set all options to those with which the optimizer was built."""
        for group, options in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.update(options)

    def applied(
        self, saved: dict[str, Any], then: dict[str, Any] | None, *, has_other_schedule: bool
    ) -> dict[str, Any]:
        """Return a saved state of the optimizer with the present options in place of those that have changed.

        Args:
            saved: the state.
            then: the `record` of the optimizer that was saved; None if it has not been saved, which changes nothing.
            has_other_schedule: whether the schedule has changed, so that what it has set is its present value.

        Raises:
            CheckpointError: the present options need what the saved state does not contain.
        """
        if then is None or not (has_other_schedule or then != self.record):
            return saved
        if then != self.record:
            self._check_kept(saved["state"], then["begun"])
        groups = []
        for old, first, own, group in zip(
            saved["param_groups"], then["groups"], self._groups, self._optimizer.param_groups, strict=True
        ):
            learned = {name: value for name, value in old.items() if name == PARAMETERS or name not in first}
            moved = {name for name in own if has_other_schedule and (name == "lr" or group[name] != own[name])}
            same = {name for name in own if name in old and first.get(name, _ABSENT) == unstructure(own[name])}
            groups.append(_options(group) | {name: old[name] for name in same - moved} | learned)
        return {**saved, "param_groups": groups}

    def _check_kept(self, saved: dict[Any, dict[str, Any]], begun: dict[str, float]) -> None:
        """Raise CheckpointError unless the saved state has what a step with the present options needs."""
        where, name = self._built.where, self._built.config.name
        advice = f"resume with the original {where}.name and {where}.options, or start a new run from the checkpoint's "
        if begun.keys() == self._begun.keys() and begun != self._begun:
            raise CheckpointError(
                f"{where}.options: they set the initial values of {', '.join(begun)}, which the optimizer '{name}' has "
                f"changed since: {advice}model folder"
            )
        kinds = (range(self._num_matrices), range(self._num_matrices, len(saved) + self._num_matrices))
        device = self._optimizer.param_groups[0][PARAMETERS][0].device
        for indices, needed in zip(kinds, self._built.kept(device), strict=True):
            kept = {each for index in indices for each in saved.get(index, ())}
            if (kept or self._begun) and (missing := sorted(needed - kept)):
                raise CheckpointError(
                    f"{where}: the optimizer '{name}' with these options continues from {', '.join(missing)}, which "
                    f"the optimizer of the checkpoint did not keep: {advice}model folder"
                )


_ABSENT = object()


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != PARAMETERS}


def _first(value: Any) -> float:
    """Return the first of the numbers that an optimizer keeps of a parameter before the first step."""
    return float(torch.as_tensor(value).flatten()[0])
