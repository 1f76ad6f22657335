"""Check that a trainer has the form of `rlcore.protocols.Trainer` before its first step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlcore.components import Component
from rlcore.errors import PluginError
from rlcore.training.inputs import DATA_INPUTS

METHODS = ("steps", "policy", "state_dict", "load_state_dict")
BUDGETS = ("steps", "epochs", "time_s")


def check_declared(component: Component[Any], trainer_type: Any) -> None:
    """Check the class attributes of a trainer: `needs`, `default_for`, `headline` and `default_budget`.

    Raises:
        PluginError: an attribute is missing or has another form than `rlcore.protocols.Trainer` describes.
    """
    needs = getattr(trainer_type, "needs", None)
    if not isinstance(needs, (tuple, list)) or any(name not in DATA_INPUTS for name in needs):
        raise PluginError(
            f'{component}: needs = {needs!r}: must be a tuple of inputs, such as ("reward_fn", "prompts"), among '
            f"{', '.join(DATA_INPUTS)}"
        )
    default_for = getattr(trainer_type, "default_for", ())
    if not isinstance(default_for, (tuple, list)) or any(name not in DATA_INPUTS for name in default_for):
        raise PluginError(
            f'{component}: default_for = {default_for!r}: must be a tuple of inputs, such as ("samples",), among '
            f"{', '.join(DATA_INPUTS)}"
        )
    headline = getattr(trainer_type, "headline", ())
    if not isinstance(headline, (tuple, list)) or any(not isinstance(e, str) or e.split() != [e] for e in headline):
        raise PluginError(
            f'{component}: headline = {headline!r}: must be a tuple of the names of metrics, such as ("reward/mean", '
            '"kl/"), without spaces'
        )
    budget = getattr(trainer_type, "default_budget", None)
    if not isinstance(budget, Mapping) or any(name not in BUDGETS for name in budget):
        raise PluginError(
            f'{component}: default_budget = {budget!r}: must be a mapping such as {{"steps": 100}}, with keys among '
            f"{', '.join(BUDGETS)}"
        )


def check_built(component: Component[Any], trainer: Any) -> None:
    """Check that a trainer has the methods of `rlcore.protocols.Trainer` and that `policy()` returns one.

    Raises:
        PluginError: a method is missing, or `policy()` returned None.
    """
    missing = [name for name in METHODS if not callable(getattr(trainer, name, None))]
    if missing:
        raise PluginError(f"{component} has no method {missing[0]}(); a trainer has {', '.join(METHODS)}")
    if trainer.policy() is None:
        raise PluginError(f"{component}: policy() returned None; return the policy that run.build() returned")
