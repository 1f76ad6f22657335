"""Read the allowed forms of `reward_fn`, from a lambda to a line of YAML, and choose the reward functions of a run."""

from __future__ import annotations

import functools
import math
import numbers
import os
import re
import sys
from collections.abc import Callable, Container, Mapping
from typing import Any

import attrs

from rlcore.components import REWARD_KEYS
from rlcore.config.yaml_files import existing_path
from rlcore.data.user_code import load_reference
from rlcore.errors import DataError, UnknownReward
from rlcore.plugins.choice import Choice, Chooser, Wrapping, check_keys
from rlcore.plugins.registry import registries
from rlcore.safe_text import is_secret, show

FORMS = (
    "a reward is a function, 'module:function', a registered reward's name, a reward model or its folder, a pair "
    "(reward, weight), a mapping {fn, weight, name} or {name, weight} with the options of a registered one, a list of "
    "these, or a mapping from names to them"
)


@attrs.frozen(eq=False)
class RewardForm:
    """One parsed entry of `reward_fn`; nothing is loaded yet.

    Attributes:
        fn: the function, its reference `module:function`, or the name of a registered reward.
        path: path of the entry, such as `reward_fn[1]`.
        name: the user's name for it in metrics; None if not set.
        weight: its factor in the total.
        options: all other keys of its mapping.
    """

    fn: Any
    path: str
    name: str | None = None
    weight: float = 1.0
    options: Mapping[str, Any] = attrs.field(factory=dict)


def read_forms(reward_fn: object, registered: Container[str], path: str = "reward_fn") -> list[RewardForm]:
    """Parse any form of `reward_fn` into a list.

    Args:
        reward_fn: the user's value of the option.
        registered: the names of registered rewards. A mapping without 'fn' whose 'name' is one of them is that reward.
        path: path of the option, for errors.

    Raises:
        DataError: `reward_fn` has none of the allowed forms, or a weight is not a finite number.
    """
    read = functools.partial(_read, registered=registered)
    is_one = isinstance(reward_fn, Mapping) and ("fn" in reward_fn or _names_registered(reward_fn, registered))
    if isinstance(reward_fn, Mapping) and not is_one and not any(map(is_secret, reward_fn)):
        forms = [attrs.evolve(read(spec, f"{path}.{name}"), name=str(name)) for name, spec in reward_fn.items()]
    elif isinstance(reward_fn, (list, tuple)) and not _is_weighted(reward_fn):
        forms = [read(spec, f"{path}[{i}]") for i, spec in enumerate(reward_fn)]
    else:
        forms = [read(reward_fn, path)]
    if not forms:
        raise DataError(f"reward_fn is empty: {reward_fn!r}; {FORMS}")
    return forms


def _read(spec: Any, path: str, registered: Container[str]) -> RewardForm:
    if isinstance(spec, Mapping):
        if "fn" not in spec and _names_registered(spec, registered):
            spec = {**spec, "fn": spec["name"], "name": None}
        if "fn" not in spec:
            raise DataError(
                f"{path}: {show(spec)} needs the key 'fn', or as 'name' a registered reward ('weight' is optional)"
            )
        name = None if spec.get("name") is None else str(spec["name"])
        options = {key: value for key, value in spec.items() if key not in REWARD_KEYS}
        return RewardForm(spec["fn"], path, name, _weight(spec.get("weight", 1.0), spec["fn"]), options)
    if _is_weighted(spec):
        return RewardForm(spec[0], path, weight=_weight(spec[1], spec[0]))
    return RewardForm(spec, path)


def _names_registered(spec: Mapping[str, object], registered: Container[str]) -> bool:
    return isinstance(spec.get("name"), str) and spec["name"] in registered


def _is_weighted(spec: Any) -> bool:
    pair = isinstance(spec, (list, tuple)) and len(spec) == 2
    return pair and not (callable(spec[1]) or isinstance(spec[1], (str, Mapping, list, tuple)))


def _weight(weight: object, function: object) -> float:
    if isinstance(weight, bool) or not isinstance(weight, numbers.Real) or not math.isfinite(weight):
        name = function if isinstance(function, str) else _name(function)
        raise DataError(f"reward_fn: the weight of '{name}' is {weight!r}; it must be a finite number")
    return float(weight)


def resolve(function: Any, what: str) -> tuple[str, Callable[[], Callable[..., Any]]]:
    """Return the name of a function and a loader for it.

    Args:
        function: the function itself, or its reference `module:function`.
        what: the option, "reward_fn" or "metric_fn".

    Raises:
        DataError: `function` is neither. The loader raises it too, if the reference does not name a callable.
    """
    if not isinstance(function, str):
        _check_callable(function, function, what)
        return _name(function) or what.removesuffix("_fn"), lambda: function
    if ":" not in function:
        raise DataError(f"{what} = {function!r}: is not of the form 'module:function'")

    def load() -> Callable[..., Any]:
        return _check_callable(load_reference(function, what), function, what)

    return re.split(r"[:.]", function)[-1], load


def _check_callable(function: object, entry: object, what: str) -> Callable[..., object]:
    if isinstance(function, type):
        raise DataError(
            f"{what}: {show(entry, 80)} is a class, and a call of it makes an object; give an object of it, whose "
            f"__call__ is the function, such as {function.__name__}()"
        )
    if callable(function):
        call: Callable[..., object] = function
        return call
    hint = f"; {FORMS}" if what == "reward_fn" else "; give a function or 'module:function'"
    raise DataError(f"{what}: {show(entry, 80)} ({type(function).__name__}) is not callable{hint}")


def _name(function: object) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = str(getattr(function, "__name__", type(function).__name__))
    return "" if name == "<lambda>" else name


MODEL = "reward_model"
"""Name of the registered reward that stands for a model, or the folder of one, given in place of a function."""
MODEL_FILES = ("config.json", "adapter_config.json")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@attrs.frozen(eq=False)
class ChosenReward:
    """One reward function before it is loaded.

    Attributes:
        name: its name in metrics.
        weight: its factor in the total.
        load: returns the function.
        choice: the registered reward; None for a user's own function.
    """

    name: str
    weight: float
    load: Callable[[], Callable[..., Any]]
    choice: Choice | None = None


def choose_rewards(
    reward_fn: object, chooser: Chooser | None = None, path: str = "reward_fn"
) -> tuple[ChosenReward, ...]:
    """Read any form of `reward_fn`.

    Args:
        reward_fn: the user's value of the option.
        chooser: looks up registered rewards; one without a file name in its errors by default.
        path: path of the option, for errors.

    Raises:
        DataError: `reward_fn` has none of the allowed forms, or a weight is not a finite number.
        UnknownReward: no reward is registered under that name.
        ConfigError: an option of a registered reward is unknown, of the wrong type or out of range.
    """
    chooser = chooser or Chooser("", Wrapping())
    return tuple(_choose(form, chooser) for form in read_forms(reward_fn, registries().rewards, path))


def _choose(form: RewardForm, chooser: Chooser) -> ChosenReward:
    known, fn = registries().rewards, form.fn
    if names_model(fn) and fn not in known:
        form = attrs.evolve(form, fn=MODEL, options={"path": fn, **form.options}, name=form.name or MODEL)
        fn = MODEL
    if isinstance(fn, str) and fn not in known and _HUB_ID.fullmatch(fn):
        raise UnknownReward(
            f"{form.path} = {fn!r}: no reward has this name; a reward model of the hub is "
            f"{{fn: {MODEL}, path: {fn}}}, and a function is module:function"
        )
    if isinstance(fn, str) and (fn in known or not _names_module(fn)):
        component = known.get(fn)
        check_keys(component, component.config_class(), REWARD_KEYS)
        choice = chooser.choice(component, form.options, form.path)
        return ChosenReward(form.name or fn, form.weight, choice.build, choice)
    if form.options:
        raise DataError(
            f"{form.path}: {', '.join(map(repr, form.options))}: only a registered reward has options; the allowed "
            "keys are 'fn', 'weight' and 'name'"
        )
    name, load = resolve(fn, "reward_fn")
    return ChosenReward(form.name or name, form.weight, load)


def names_model(fn: object) -> bool:
    """Return whether an entry is a model of `transformers` in memory, or the folder of one."""
    if isinstance(fn, (str, os.PathLike)):
        folder = existing_path(os.fspath(fn))
        return folder is not None and any((folder / name).exists() for name in MODEL_FILES)
    transformers: Any = sys.modules.get("transformers")
    return transformers is not None and isinstance(fn, transformers.PreTrainedModel)


def _names_module(reference: str) -> bool:
    """Return whether a reference may be `module:function`; many dist names are no valid module names."""
    module, colon, _ = reference.partition(":")
    return bool(colon) and all(part.isidentifier() for part in module.split("."))
