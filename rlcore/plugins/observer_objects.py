"""Observers that are plain objects: a method with the name of an observer hook implements it, without a package."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from rlcore import hookspecs
from rlcore.errors import InputsError
from rlcore.plugins.checks import Refused, check_arguments
from rlcore.safe_text import show

HOOKS = (
    "on_run_start",
    "on_rollout",
    "on_step",
    "on_evaluate",
    "on_checkpoint",
    "on_export",
    "on_run_end",
    "on_run_closed",
)
"""The hooks of observers."""


def check_observer(observer: Any, where: str) -> None:
    """Check that an object implements an observer hook, and that its hooks take arguments that exist.

    Args:
        observer: any object or module.
        where: its place in the arguments, for errors.

    Raises:
        InputsError: it is a class, has no hook, or a hook has an unknown argument.
    """
    if isinstance(observer, type):
        raise InputsError(f"{where} = {observer.__name__}: is a class; pass an object of it: {observer.__name__}(...)")
    implemented = [hook for hook in HOOKS if callable(getattr(observer, hook, None))]
    if not implemented:
        hooks = ", ".join(f"{hook}({', '.join(_arguments(hook))})" for hook in HOOKS)
        raise InputsError(
            f"{where} = {show(observer)}: is no observer, because it has none of the methods {hooks}; define one or "
            "more of them, with any subset of these arguments"
        )
    for hook in implemented:
        try:
            check_arguments(getattr(observer, hook), hook, _arguments(hook))
        except Refused as refused:
            raise InputsError(f"{where} ({type(observer).__name__}): {refused.reason}") from None


def find_hook(observer: Any, hook: str) -> Callable[..., Any] | None:
    """Return a function that calls a hook of an object with the arguments that it takes; None if it has none."""
    method = getattr(observer, hook, None)
    if not callable(method):
        return None
    parameters = inspect.signature(method).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    taken = [name for name in _arguments(hook) if takes_all or name in parameters]
    return lambda **arguments: method(**{name: arguments[name] for name in taken})


def _arguments(hook: str) -> list[str]:
    return list(inspect.signature(getattr(hookspecs, hook)).parameters)
