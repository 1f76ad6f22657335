"""Check that a trainer has the form of `rlcore.protocols.Trainer` before its first step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


def check_steps(name: str, steps: Any) -> Iterator[Any]:
    """Return the result of `steps()` after checking that it is an iterator.

    Raises:
        PluginError: it is not, as for a function without a `yield`.
    """
    if not isinstance(steps, Iterator):
        raise PluginError(
            f"trainer '{name}': steps() returned {type(steps).__name__}; it must be a generator, which yields the "
            "metrics of each step"
        )
    return steps


def check_metrics(name: str, metrics: Any, step: int) -> None:
    """Check that a step yielded a dict.

    Raises:
        PluginError: it yielded something else.
    """
    if not isinstance(metrics, dict):
        raise PluginError(
            f"trainer '{name}': steps() yielded {metrics!r:.80} at step {step}; yield a dict of metrics, which may be "
            "empty"
        )


def check_state(name: str, state: Any) -> None:
    """Check that `state_dict()` returned a dict.

    Raises:
        PluginError: it returned something else.
    """
    if not isinstance(state, dict):
        raise PluginError(
            f"trainer '{name}': state_dict() returned {state!r:.80}; return a dict; `load_state_dict` receives it "
            "when the run is resumed"
        )
