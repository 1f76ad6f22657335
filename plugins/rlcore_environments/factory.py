"""From what a user passes or a plugin registers to a factory of environments, one for each episode."""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import attrs

from rlcore.data.user_code import load_reference
from rlcore.errors import ConfigError
from rlcore.protocols import Environment
from rlcore.safe_text import show
from rlcore_environments.answers import BadAnswer
from rlcore_environments.worker import STATED, describe_misfit, wrong_methods, wrong_rows

FORMS = (
    "an environment is a class with reset(row, *, seed) and step(turn), a function that returns an object with these "
    "methods, or an object with make()"
)
DEFAULT_TURNS = 16


class Closable(Protocol):
    """What ends a factory."""

    def __call__(self) -> Any:
        """End it."""
        ...


@attrs.frozen(eq=False)
class Factory:
    """Makes environments, with what their author states about them.

    Attributes:
        name: the environment's name in messages.
        make: returns the environment of one episode.
        tools: JSON schemas that the chat template renders.
        max_turns: most turns of the policy; 0 if the author states none.
        concurrency: most calls at a time; 0 if the author states none.
        replayable: whether the same row, seed and turns have the same answers.
        gives_rewards: whether any step has a reward; else a run needs a reward function.
        own_rows: returns the rows of a split, None if there are none.
        wrong_rows: why that cannot be called with a split; an attribute of this name may also be something else.
        reward_names: rewards that are metrics of every episode.
        example_turns: texts with which episodes get somewhere, for previews and laws.
        shutdown: ends what all environments share.
        source: fingerprint of the source of an environment that only another process imports.
        is_remote: whether environments are in another process, so that the thread of a call here does not matter.
    """

    name: str
    make: Callable[[], Environment]
    tools: Sequence[Any] = ()
    max_turns: int = 0
    concurrency: int = 0
    replayable: bool = True
    gives_rewards: bool = True
    own_rows: Callable[[str], Any] | None = None
    wrong_rows: str = ""
    example_turns: Sequence[str] = ()
    reward_names: Sequence[str] = ()
    shutdown: Callable[[], Any] | None = None
    source: str = ""
    is_remote: bool = False


def factory_of(given: Any) -> Factory:
    """Return the factory of any form of an environment.

    Raises:
        ConfigError: it has none of the forms, two of its tools have one name, or a method of a class has not the
            arguments of an environment's.
    """
    if isinstance(given, str):
        given = load_reference(given, "data.environment")
    source = given
    if callable(getattr(given, "make", None)) and not isinstance(given, type):
        make = given.make
    elif isinstance(given, type) or (callable(given) and not callable(getattr(given, "step", None))):
        make = given
    else:
        if callable(getattr(given, "step", None)):
            raise ConfigError(
                f"environment = {show(given)}: is an object of an environment, which only one episode can use; pass "
                f"its class, {type(given).__name__}, or a function that returns a new object"
            )
        raise ConfigError(f"environment = {show(given)}: {FORMS}")
    if (
        isinstance(given, type)
        and not callable(getattr(given, "step", None))
        and callable(getattr(given, "make", None))
    ):
        source = given()
        make = source.make
    _check_arguments(make, given)
    name = getattr(given, "__name__", type(given).__name__)
    if isinstance(make, type):
        check_methods(make.__name__, wrong_methods(make))
    tools = list(getattr(source, "tools", None) or ())
    check_tools(tools)
    return Factory(
        name=name,
        make=make,
        tools=tools,
        own_rows=getattr(source, "rows", None),
        wrong_rows=wrong_rows(source),
        shutdown=getattr(source, "shutdown", None),
        **stated({each: getattr(source, each, default) for each, default in STATED.items()}, name),
    )


def stated(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return what the author of an environment states about it (`STATED`), checked.

    Raises:
        ConfigError: an attribute has another type.
    """
    for count in ("max_turns", "concurrency"):
        value = 0 if given[count] is None else given[count]
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 0:
            raise ConfigError(
                f"environment = {name}: {count} = {show(value)} ({type(value).__name__}): must be a whole number, at "
                "least 1, or 0 for no limit of the environment's own"
            )
    for flag in ("replayable", "gives_rewards"):
        if type(given[flag]).__name__ not in ("bool", "bool_"):  # of numpy, too
            raise ConfigError(f"environment = {name}: {flag} = {show(given[flag])}: must be True or False")
    for texts, what in (("reward_names", "names"), ("example_turns", "texts")):
        value, least = given[texts], 1 if texts == "reward_names" else 0
        if not isinstance(value, list | tuple) or not all(
            isinstance(each, str) and len(each) >= least for each in value
        ):
            raise ConfigError(f"environment = {name}: {texts} = {show(value)}: must be a list of {what}")
    counts = {count: int(given[count] or 0) for count in ("max_turns", "concurrency")}
    flags = {flag: bool(given[flag]) for flag in ("replayable", "gives_rewards")}
    return {
        **given,
        **counts,
        **flags,
        "reward_names": tuple(given["reward_names"]),
        "example_turns": tuple(given["example_turns"]),
    }


def check_tools(tools: Sequence[Any]) -> None:
    """Check that every tool has a schema with a name of its own.

    Raises:
        ConfigError: one has none, or the name of another one.
    """
    names: list[str] = []
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, Mapping) else {}
        name = function.get("name")
        if not isinstance(name, str) or not name:
            raise ConfigError(f"tools: {show(tool)}: is no JSON schema of a function with a name")
        if name in names:
            raise ConfigError(
                f"tools: two tools are called '{name}', so that a call of it is ambiguous; rename one of them"
            )
        names.append(name)


def check_methods(name: str, wrong: str, remedy: str = "; give the method these parameters") -> None:
    """Check what `wrong_methods` or `wrong_rows` found of a class.

    Raises:
        ConfigError: it found something.
    """
    if wrong:
        raise ConfigError(f"environment = {name}: has {wrong}{remedy}")


def check_environment(made: Any, factory: Factory) -> Environment:
    """Return what a factory made, if it has the methods of an environment.

    Raises:
        BadAnswer: it has not.
    """
    if misfit := describe_misfit(made):
        raise BadAnswer(f"'{factory.name}' made {misfit}")
    environment: Environment = made
    return environment


def _check_arguments(make: Callable[..., Any], given: Any) -> None:
    try:
        inspect.signature(make).bind()
    except TypeError as error:
        raise ConfigError(
            f"environment = {show(given)}: is called without arguments, once for each episode, but takes "
            f"{inspect.signature(make)} ({error}); pass a function without required parameters"
        ) from None
    except ValueError:  # no signature
        return
