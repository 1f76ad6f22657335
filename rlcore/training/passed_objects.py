"""Observers and loggers that a program passes to `rlcore.train` as objects, without a package."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from rlcore.errors import InputsError
from rlcore.plugins.observers import check_observer
from rlcore.plugins.published import published
from rlcore.plugins.registry import describe_provider, first_result
from rlcore.safe_text import show

LOGGER_METHODS = ("metrics(step, metrics)", "completions(step, rows)", "close(error)")


def observers_by_name(given: Any) -> dict[str, Any]:
    """Return the observers of a run by their names in messages; plugins may adapt them.

    Raises:
        InputsError: one of them is no observer.
    """
    if given is None:
        return {}
    if not isinstance(given, (list, tuple)):
        raise InputsError(f"observers = {show(given)}: must be a list of objects, also if there is only one")
    observers = {}
    for i, observer in enumerate(given):
        adapted = _adapt(observer, f"observers[{i}]")
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


def _adapt(observer: Any, where: str) -> Any:
    """Return the observer that a plugin puts in the place of an object, or the object itself if none does.

    Raises:
        InputsError: a published plugin, which is not in use, adapts objects of its class.
    """
    adapted = first_result("adapt_observer", observer=observer)
    if adapted is None:
        known = published("observers")
        for name in (f"{each.__module__}:{each.__qualname__}" for each in type(observer).__mro__):
            if name in known:
                source = describe_provider("observers", name)
                raise InputsError(f"{where} ({type(observer).__name__}): support of {name.partition(':')[2]} {source}")
    return observer if adapted is None else adapted


def _name(argument: str, i: int, given: Any) -> str:
    return f"{argument}[{i}] ({type(given).__name__})"
