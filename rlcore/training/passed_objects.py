"""Observers and loggers that a program passes to `rlcore.train` as objects, without a package."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rlcore.errors import InputsError
from rlcore.plugins.observer_objects import check_observer
from rlcore.safe_text import show

LOGGER_METHODS = ("metrics(step, metrics)", "completions(step, rows)", "close(error)")


def observers_by_name(given: Any) -> dict[str, Any]:
    """Return the observers of a run by their names in messages; callbacks of `transformers` are adapted.

    Raises:
        InputsError: one of them is no observer.
    """
    if given is None:
        return {}
    if not isinstance(given, (list, tuple)):
        raise InputsError(f"observers = {show(given)}: must be a list of objects, also if there is only one")
    observers = {}
    for i, observer in enumerate(given):
        adapted = _adapt(observer)
        check_observer(adapted, f"observers[{i}]")
        observers[_name("observers", i, observer)] = adapted
    return observers


def split_loggers(given: Sequence[Any] | None) -> tuple[list[Any] | None, dict[str, Any]]:
    """Return the names and mappings of an argument `loggers`, and its objects by their names in messages.

    Raises:
        InputsError: one of them is neither a name, a mapping nor a logger.
    """
    if not isinstance(given, (list, tuple)):
        return given, {}  # type: ignore[return-value]  # the configuration refuses it
    named = [entry for entry in given if isinstance(entry, (str, Mapping))]
    objects = {
        _name("loggers", i, entry): _checked(entry, f"loggers[{i}]")
        for i, entry in enumerate(given)
        if not isinstance(entry, (str, Mapping))
    }
    return named, objects


def _checked(logger: Any, where: str) -> Any:
    if isinstance(logger, type):
        raise InputsError(f"{where} = {logger.__name__}: is a class; pass an object of it: {logger.__name__}(...)")
    missing = [method for method in LOGGER_METHODS if not callable(getattr(logger, method.partition("(")[0], None))]
    if missing:
        raise InputsError(
            f"{where} = {show(logger)}: is neither the name of a logger nor a logger: it has no method "
            f"{' and no '.join(missing)}"
        )
    for method in LOGGER_METHODS:
        name, _, arguments = method.partition("(")
        try:
            inspect.signature(getattr(logger, name)).bind(*arguments.split(","))
        except TypeError as error:
            raise InputsError(f"{where} = {show(logger)}: its {name} is not {method}: {error}") from None
    return logger


def _adapt(observer: Any) -> Any:
    """Wrap a callback of `transformers` as an observer; return any other object as it is."""
    if "transformers.trainer_callback" not in sys.modules:  # where its class comes from
        return observer
    from transformers import TrainerCallback

    from rlcore.training.trainer_callbacks import CallbackObserver

    return CallbackObserver(observer) if isinstance(observer, TrainerCallback) else observer


def _name(argument: str, i: int, given: Any) -> str:
    return f"{argument}[{i}] ({type(given).__name__})"
