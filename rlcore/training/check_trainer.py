"""Check that a stranger's trainer has the form the core relies on, before a run is paid for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlcore.components import Component
from rlcore.errors import PluginError
from rlcore.training.inputs import DATA_INPUTS

METHODS = ("steps", "policy", "state_dict", "load_state_dict")
BUDGETS = ("steps", "epochs", "time_s")


def check_declared(component: Component[Any], trainer_type: Any) -> None:
    """Check what a trainer says of itself: `needs` and `default_budget`.

    Raises:
        PluginError: one is missing, or is not of the form `rlcore.protocols.Trainer` gives.
    """
    needs = getattr(trainer_type, "needs", None)
    if not isinstance(needs, (tuple, list)) or any(name not in DATA_INPUTS for name in needs):
        raise PluginError(
            f'{component}: needs = {needs!r}: must be a tuple of inputs, such as ("reward_fn", "prompts"), among '
            f"{', '.join(DATA_INPUTS)}"
        )
    budget = getattr(trainer_type, "default_budget", None)
    if not isinstance(budget, Mapping) or any(name not in BUDGETS for name in budget):
        raise PluginError(
            f'{component}: default_budget = {budget!r}: must be a mapping such as {{"steps": 100}}, with keys among '
            f"{', '.join(BUDGETS)}"
        )


def check_built(component: Component[Any], trainer: Any) -> None:
    """Check that a trainer has the methods of `rlcore.protocols.Trainer`, and gives a policy.

    Raises:
        PluginError: a method is missing, or `policy()` gives none.
    """
    missing = [name for name in METHODS if not callable(getattr(trainer, name, None))]
    if missing:
        raise PluginError(f"{component} has no method {missing[0]}(); a trainer has {', '.join(METHODS)}")
    if trainer.policy() is None:
        raise PluginError(f"{component}: policy() returned None; return what run.build_policy() gave")


def check_steps(name: str, steps: Any) -> Iterator[Any]:
    """Return what `steps()` gave, once it is known to be an iterator.

    Raises:
        PluginError: it is something else, as of a function without a `yield`.
    """
    if not isinstance(steps, Iterator):
        raise PluginError(
            f"trainer '{name}': steps() returned {type(steps).__name__}; it must be a generator, which yields the "
            "metrics of each step"
        )
    return steps


def check_metrics(name: str, metrics: Any, step: int) -> None:
    """Check what a step yielded.

    Raises:
        PluginError: it is no dict.
    """
    if not isinstance(metrics, dict):
        raise PluginError(
            f"trainer '{name}': steps() yielded {metrics!r:.80} at step {step}; yield a dict of metrics, which may be "
            "empty"
        )


def check_state(name: str, state: Any) -> None:
    """Check what `state_dict()` returned.

    Raises:
        PluginError: it is no dict.
    """
    if not isinstance(state, dict):
        raise PluginError(
            f"trainer '{name}': state_dict() returned {state!r:.80}; return a dict, which `load_state_dict` is given "
            "when the run goes on"
        )
