"""The user's model, data and functions, before anything is loaded, and how config.yaml shows them."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from rlcore.errors import InputsError
from rlcore.logging import get_logger
from rlcore.plugins.builtin import published
from rlcore.plugins.observers import check_observer, describe_provider
from rlcore.plugins.registry import services
from rlcore.safe_text import show

log = get_logger("inputs")

DATA_INPUTS = (
    "prompts", "samples", "rewards", "eval_prompts", "eval_samples", "reward_fn", "metric_fn", "logit_mask",
    "environment",
)  # fmt: skip


@attrs.define(kw_only=True)
class Inputs:
    """The user's arguments, None for each that was not given; observers and loggers by their names in messages."""

    model: Any = None
    tokenizer: Any = None
    reward_fn: Any = None
    prompts: Any = None
    samples: Any = None
    rewards: Any = None
    eval_prompts: Any = None
    eval_samples: Any = None
    metric_fn: Callable[..., object] | str | None = None
    logit_mask: Any = None
    environment: Any = None
    observers: Mapping[str, object] = attrs.field(factory=dict)
    loggers: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def given(self) -> list[str]:
        """Names of the inputs of data that were given: not the model, tokenizer, observers and loggers.

        An environment gives rewards, and may give prompts.
        """
        own = ("prompts", "reward_fn") if self.environment is not None else ()
        return [name for name in DATA_INPUTS if getattr(self, name) is not None or name in own]

    @property
    def objects(self) -> list[str]:
        """Names of the observers and loggers that were passed as objects."""
        return [*self.observers, *self.loggers]

    def require(
        self, trainer: str, needs: tuple[str, ...], *, uses: str = "", other: Callable[[], str | None] = lambda: None
    ) -> None:
        """Check that a trainer has all the inputs it needs, and that none is a description of an object.

        Args:
            trainer: its name, for errors.
            needs: names of the inputs it cannot do without.
            uses: name of an input that it uses if it is given.
            other: returns the name of another trainer that fits the given inputs; called if one is missing.

        Raises:
            InputsError: it names what is missing.
        """
        if self.model is None or isinstance(self.model, (bool, int, float, list, tuple)):
            raise InputsError(
                f"model = {show(self.model)}: must be a hub id, folder, PretrainedConfig or module (in a file "
                "model.path)"
            )
        refuse_descriptions(self.model, "model.path")
        refuse_descriptions(self.tokenizer, "model.tokenizer")
        for name in DATA_INPUTS:
            refuse_descriptions(getattr(self, name), f"data.{name}")
        if self.rewards is not None and "rewards" not in needs:
            log.warning("rewards are not used by this trainer", trainer=trainer, needs=", ".join(needs))
        for name in ("reward_fn", "metric_fn"):
            is_used = name in (*needs, uses) or not (self.prompts is None is self.eval_prompts)
            if getattr(self, name) is not None and not is_used:
                log.warning(
                    "a function is not used: this trainer calls none, and there are no prompts to evaluate",
                    function=name, trainer=trainer, needs=", ".join(needs),
                )  # fmt: skip
        missing = [name for name in needs if name not in self.given]
        if missing:
            fitting = other()
            hint = f", or name trainer '{fitting}', which learns from the given inputs" if fitting else ""
            raise InputsError(
                f"trainer '{trainer}' needs {' and '.join(needs)}; missing: {', '.join(missing)} "
                f"(given: {', '.join(self.given) or 'nothing'}). Pass them to rlcore.train or set them under data: "
                f"in the configuration file{hint}"
            )


MAX_ROWS = 100
"""Lists from Python that are longer are described instead of written out."""


def describe_input(given: Any, *, whole: bool = False) -> Any:
    """Return how config.yaml shows an input: plain values and names as they are, objects as `<Dataset of 8>`.

    Args:
        given: any value of an argument of `rlcore.train`.
        whole: write lists out however long they are, as for a list from a file.
    """
    if given is None or isinstance(given, (str, int, float)):
        return given
    if isinstance(given, os.PathLike):
        return os.fspath(given)
    if isinstance(given, Mapping) and len(given) <= MAX_ROWS:
        return {str(key): describe_input(value, whole=whole) for key, value in given.items()}
    if isinstance(given, (list, tuple)) and (whole or len(given) <= MAX_ROWS):
        return [describe_input(value, whole=whole) for value in given]
    if callable(given) and not isinstance(given, type) and hasattr(given, "__qualname__"):
        reference = f"{given.__module__}:{given.__qualname__}"
        return reference if _names(reference, given) else f"<{reference}>"
    kind = type(given).__name__
    return f"<{kind} of {len(given)}>" if hasattr(type(given), "__len__") else f"<{kind}>"


def refuse_descriptions(given: object, option: str) -> None:
    """Check that `given` is not a description that `describe_input` wrote in place of an object.

    Raises:
        InputsError: it is a description; only the program that has the object can pass it again.
    """
    # A row of data may look like a description; a whole source or a function never does.
    for value in given if isinstance(given, (list, tuple)) and option.endswith("_fn") else [given]:
        text = value.get("fn") if isinstance(value, Mapping) else value
        if isinstance(text, str) and text.startswith("<") and text.endswith(">"):
            raise InputsError(
                f"{option} = {text!r}: describes an object that a program passed to rlcore.train and that a "
                "file cannot contain; name a file or 'module:function' instead, or pass "
                f"{option.rpartition('.')[2]} from Python"
            )


def _names(reference: str, function: object) -> bool:
    """Return whether `module:attribute` refers to this function, in other programs too."""
    module, _, path = reference.partition(":")
    if module == "__main__" or "<" in path or module not in sys.modules:
        return False
    found: object = sys.modules[module]
    for step in path.split("."):
        found = getattr(found, step, None)
    return found is function


LOGGER_METHODS = ("metrics(step, metrics)", "completions(step, rows)", "close(error)")


def observers_by_name(given: object) -> dict[str, object]:
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


def split_loggers(given: Sequence[object] | None) -> tuple[list[Any] | None, dict[str, Any]]:
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


def _checked(logger: object, where: str) -> object:
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


def _adapt(observer: object, where: str) -> object:
    """Return the observer that a plugin puts in the place of an object, or the object itself if none does.

    Raises:
        InputsError: a published plugin, which is not in use, adapts objects of its class.
    """
    adapted = services().observer(observer)
    if adapted is None:
        known = published("observers")
        for name in (f"{each.__module__}:{each.__qualname__}" for each in type(observer).__mro__):
            if name in known:
                source = describe_provider("observers", name)
                raise InputsError(f"{where} ({type(observer).__name__}): support of {name.partition(':')[2]} {source}")
    return observer if adapted is None else adapted


def _name(argument: str, i: int, given: object) -> str:
    return f"{argument}[{i}] ({type(given).__name__})"
