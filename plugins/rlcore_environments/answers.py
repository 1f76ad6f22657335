"""Read what environments return: messages, and steps in all of their forms.

Also in this file: from what a user passes or a plugin registers to a factory of environments, one for each episode.
"""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch

from rlcore.data.user_code import load_reference
from rlcore.errors import ConfigError
from rlcore.protocols import Environment, EnvironmentFactoryTraits, Step
from rlcore.safe_text import shorten, show
from rlcore.types import Options
from rlcore_environments.worker import STATED, describe_misfit, wrong_methods, wrong_rows

LARGEST_REWARD: float = torch.finfo(torch.float32).max
FIELDS = tuple(field.name for field in attrs.fields(Step))


class BadAnswer(Exception):
    """An environment returned what no episode can go on with."""


@attrs.frozen
class Answer:
    """A checked step.

    Attributes:
        messages: what the policy reads next.
        rewards: the reward by name; one without a name is called "".
        done: the episode has reached its end.
        truncated: the environment cut the episode off.
        info: plain values for logs.
        stop: strings that end the next turn.
    """

    messages: list[dict[str, Any]]
    rewards: Mapping[str, float]
    done: bool
    truncated: bool
    info: Mapping[str, Any]
    stop: tuple[str, ...] = ()

    @property
    def reward(self) -> float:
        """The sum of the rewards."""
        return math.fsum(self.rewards.values())


def read_messages(found: object, what: str) -> list[dict[str, Any]]:
    """Return messages of any form as a list of mappings with `role` and `content`.

    Args:
        found: the messages.
        what: the method that returned them, `reset` or `step`.

    Raises:
        BadAnswer: they have none of the forms.
    """
    if found is None:
        return []
    if isinstance(found, str):
        return [{"role": "user", "content": found}] if found else []
    if isinstance(found, Step) or (isinstance(found, Mapping) and "role" not in found):
        raise BadAnswer(
            f"{what} returned {shorten(found)}, not messages; an episode that is over at once must not begin: leave "
            "its row out"
        )
    entries = [found] if isinstance(found, Mapping) else found
    if not isinstance(entries, Sequence):
        raise BadAnswer(f"{what} returned {shorten(found)} ({type(found).__name__}), not a text or messages")
    if what == "reset" and len(entries) == 2 and isinstance(entries[1], Mapping) and "role" not in entries[1]:
        raise BadAnswer(
            f"reset returned {shorten(found)}, a pair of an observation and a mapping, as Gymnasium's reset does; "
            "return the first messages alone, such as the observation"
        )
    messages = []
    for entry in entries:
        is_message = isinstance(entry, Mapping) and isinstance(entry.get("role"), str)
        if not is_message or not isinstance(entry.get("content"), str):
            raise BadAnswer(f"{what} returned the message {shorten(entry)}; a message has a role and a text as content")
        messages.append(dict(entry))
    return messages


def read_step(found: object) -> Answer:
    """Return a step of any form, checked.

    A text is what the policy reads next; a number is the reward of the last turn; a pair is both; a mapping has the
    fields of a `Step`. A truth value in place of a number is refused, since it may mean an end; as the `reward` of a
    `Step` it counts 1 or 0.

    Raises:
        BadAnswer: it has none of the forms, a reward is not finite or too large, `done` or `truncated` is no truth
            value, or an episode that goes on has no messages.
    """
    found = _as_step(found)
    done, truncated = _flag("done", found.done), _flag("truncated", found.truncated)
    messages = read_messages(found.messages, "step")
    if not messages and not (done or truncated):
        raise BadAnswer("step returned no messages, though the episode is neither done nor truncated")
    if messages and messages[-1]["role"] == "assistant" and not (done or truncated):
        raise BadAnswer("the last message of step has the role 'assistant'; the policy speaks next, so it must not")
    if not isinstance(found.info, Mapping):
        raise BadAnswer(f"step returned info = {shorten(found.info)}, which is not a mapping")
    return Answer(
        messages, _rewards(found.reward), done, truncated, {str(k): v for k, v in found.info.items()}, _stop(found.stop)
    )


def _as_step(found: object) -> Step:
    """Return a step of any form as a `Step`, whose fields are not checked."""
    if isinstance(found, Step):
        return found
    if isinstance(found, str):
        return Step(messages=found)
    if isinstance(found, bool):
        raise BadAnswer(_describe_unknown(found))
    if isinstance(found, numbers.Real):
        return Step(reward=to_float(found), done=True)
    if isinstance(found, tuple) and len(found) == 2 and not isinstance(found[1], bool):
        return Step(messages=found[0], reward=found[1])
    if isinstance(found, Mapping):
        if unknown := sorted(set(map(str, found)) - set(FIELDS)):
            raise BadAnswer(f"step returned a mapping with the key '{unknown[0]}'; known keys: {', '.join(FIELDS)}")
        return Step(**found)
    raise BadAnswer(_describe_unknown(found))


def _describe_unknown(found: object) -> str:
    """Return what is wrong with a step that has none of the forms."""
    parts = found if isinstance(found, list | tuple) else [found]
    if len(parts) <= 2 and parts and isinstance(parts[-1], bool):
        return (
            f"step returned {shorten(found)}, and {parts[-1]} may mean an end or a reward; return Step(done=True) for "
            "an end, and a number such as 1.0 for a reward"
        )
    if len(parts) in (4, 5):
        return (
            f"step returned {shorten(found)}, {len(parts)} values as Gymnasium's step does; return "
            "Step(observation, reward=..., done=terminated, truncated=..., info=...)"
        )
    return (
        f"step returned {shorten(found)} ({type(found).__name__}); return a rlcore.protocols.Step, a text, a "
        "number, or a pair (text, number)"
    )


def _flag(name: str, value: object) -> bool:
    """Return a truth value, also one of numpy or torch, or 0 or 1; a text such as "false" is none."""
    plain = value if isinstance(value, bool) else to_metric(value)
    if plain not in (0, 1):
        raise BadAnswer(f"step returned {name} = {shorten(value)} ({type(value).__name__}), which is not True or False")
    return bool(plain)


def _stop(stop: object) -> tuple[str, ...]:
    found = (stop,) if isinstance(stop, str) else stop
    if not isinstance(found, list | tuple) or not all(isinstance(each, str) and each for each in found):
        raise BadAnswer(f"step returned stop = {shorten(stop)}; give texts that are not empty, such as ['\\n']")
    return tuple(found)


def _rewards(reward: object) -> dict[str, float]:
    named = reward if isinstance(reward, Mapping) else {"": reward}
    checked = {}
    for name, value in named.items():
        where = f" ('{name}')" if name else ""
        plain = to_real(value)
        if plain is None:
            raise BadAnswer(f"step returned the reward {shorten(value)}{where}, which is not a number")
        number = to_float(plain)
        if not math.isfinite(number):
            raise BadAnswer(f"step returned the reward {number}{where}, which is not finite")
        checked[str(name)] = number
    if not abs(math.fsum(checked.values())) <= LARGEST_REWARD:
        raise BadAnswer(f"step returned the reward {shorten(reward)}, which is outside the range of float32")
    return checked


def to_float(value: Any) -> float:
    """Return a real number as float; infinity where it is larger than any."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def to_metric(value: object) -> float | None:
    """Return a number or truth value of `info`, also one of numpy, as a metric; None if it is none, or not finite."""
    plain = to_real(value)
    if plain is None:
        return None
    number = to_float(plain)
    return number if math.isfinite(number) else None


def to_real(value: Any) -> numbers.Real | None:
    """Return a number or truth value as it is, the number of an array or tensor without axes, and None for others."""
    if not isinstance(value, numbers.Real):
        try:
            value = value.item() if getattr(value, "shape", None) == () else None
        except (TypeError, ValueError, RuntimeError):
            return None
    return value if isinstance(value, numbers.Real) else None


FORMS = (
    "an environment is a class with reset(row, *, seed) and step(turn), a function that returns an object with these "
    "methods, or an object with make()"
)


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
    traits = EnvironmentFactoryTraits(source)
    tools = list(traits.tools or ())
    check_tools(tools)
    return Factory(
        name=name,
        make=make,
        tools=tools,
        own_rows=traits.rows,
        wrong_rows=wrong_rows(source),
        shutdown=traits.shutdown,
        **stated({each: getattr(traits, each) for each in STATED}, name),
    )


def stated(given: Options, name: str) -> dict[str, Any]:
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


def check_tools(tools: Sequence[object]) -> None:
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


def _check_arguments(make: Callable[..., object], given: object) -> None:
    try:
        inspect.signature(make).bind()
    except TypeError as error:
        raise ConfigError(
            f"environment = {show(given)}: is called without arguments, once for each episode, but takes "
            f"{inspect.signature(make)} ({error}); pass a function without required parameters"
        ) from None
    except ValueError:  # no signature
        return
