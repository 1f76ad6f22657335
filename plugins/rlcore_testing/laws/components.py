"""Laws of components of every kind: name, target and options."""

from __future__ import annotations

import inspect
import pickle
import re
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs

from rlcore.components import BESIDE_OPTIONS, KINDS, LANGUAGE_MODEL, REWARD_KEYS, TOTAL, WARMUP
from rlcore.config import describe, dump_yaml, load_yaml, structure, unstructure
from rlcore.config.options import fields, section_class
from rlcore.errors import ConfigError, PluginError
from rlcore.plugins.registry import all_registries
from rlcore.training.run_components import MODEL_KEYS
from rlcore_testing.law import BASE, EVERY, LawBroken, Subject, is_not_the_core, law, require
from rlcore_testing.rig.isolate import call_in_new_process

NAME = re.compile(r"[a-z0-9]+([_.-][a-z0-9]+)*")
MAX_NAME, MAX_SUMMARY = 30, 100
RESERVED = {"architectures": MODEL_KEYS, "rewards": REWARD_KEYS, **BESIDE_OPTIONS}
"""Kind → keys of its section that the core reserves; for all other kinds, `name`."""
ARGUMENTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "trainers": (("config", "run"), ()),
    "loggers": (("config", "run"), ()),
    "commands": (("parser",), ()),
    "shardings": (("config", "ranks"), ()),
    "architectures": (("spec", "config"), ("tokenizer", "value_head", "reference")),
}
"""Kind → positional and keyword arguments that rlcore passes to its components."""
ARGUMENTS_WITHOUT_OPTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]] | None] = {
    "rollout_stores": ((), ()),
    "samplers": (("policy", "prompts", "sampling"), ("generator",)),
    "pipelines": (("source", "tokenizer", "config"), ("max_length", "what")),
    "rewards": None,
    "environments": None,
}
"""The same for kinds whose components receive only the options if they have any, for components without options."""


def _has_options(subject: Subject) -> bool:
    """Return whether it has options."""
    return subject.it.config_reference is not None


@law(EVERY)
def the_name_is_legal(subject: Subject) -> None:
    """The name has at most 30 characters: lower-case letters and digits, with '-', '_' or '.' between them."""
    name = subject.it.name
    require(
        NAME.fullmatch(name) is not None and len(name) <= MAX_NAME,
        f"'{name}' is not lower case, or too long; choose a name such as 'my-algo', with {MAX_NAME} characters at most",
    )


@law(EVERY, when=is_not_the_core)
def the_name_is_not_one_of_rlcores(subject: Subject) -> None:
    """No component of rlcore has the same name and kind, since the short name would be ambiguous."""
    kind = subject.it.kind
    ours = {component.name for component in getattr(all_registries(), kind) if component.dist in BASE - {subject.dist}}
    require(
        subject.it.name not in ours,
        f"rlcore has a {KINDS[kind]} '{subject.it.name}' itself; choose another name, for example with your package's "
        "name as a prefix",
    )


@law(EVERY)
def the_target_imports(subject: Subject) -> None:
    """The target can be imported and is callable."""
    try:
        target = subject.it.target()
    except PluginError as error:
        raise LawBroken(f"{error}; correct the registered reference or its module") from error
    require(callable(target), f"its target {subject.it.reference!r} is {target!r}, which cannot be called")


@law(EVERY)
def the_target_accepts_its_arguments(subject: Subject) -> None:
    """The target accepts the positional and keyword arguments that rlcore passes to components of its kind.

    The target of a store, sampler, pipeline or reward with options receives only the options, and its return value is
    used; an optimizer or scheduler receives each option as a keyword argument.
    """
    target: Any = subject.it.target()
    try:
        signature = inspect.signature(target)
    except (ValueError, TypeError):  # extension types may have no signature
        return
    arguments = _arguments(subject)
    if arguments is None:
        return
    placed, named = arguments
    try:
        signature.bind(*placed, **dict.fromkeys(named))
    except TypeError as error:
        called = ", ".join([*placed, *(f"{name}=..." for name in named)])
        raise LawBroken(
            f"it is called with ({called}), but takes {signature}: {error}; declare these parameters, in this order"
        ) from error


def _has_an_example_model(subject: Subject) -> bool:
    """Return whether it is an architecture with an `example_model`."""
    from rlcore.protocols import ArchitectureTraits

    return subject.it.kind == "architectures" and ArchitectureTraits(subject.it.target()).example_model is not None


@law(EVERY, when=_has_an_example_model)
def the_example_model_is_the_same_in_every_call(subject: Subject) -> None:
    """Every call of `example_model` returns a model with the same weights, whatever the global random state."""
    from rlcore_testing.rig.policies import examples  # imports torch

    examples(subject)


@law(EVERY)
def the_target_pickles(subject: Subject) -> None:
    """The target can be pickled by reference, so that it can be sent to spawned workers."""
    target: object = subject.it.target()
    advice = "define it at the top level of an importable module, under its own name"
    require(not _in_main(target), f"its target is defined in __main__; {advice}")
    try:
        again = pickle.loads(pickle.dumps(target))  # noqa: S301  pickled by this process
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise LawBroken(f"its target does not pickle: {error}; {advice}") from error
    by_name = isinstance(target, type) or hasattr(target, "__qualname__")
    require(not by_name or again == target, f"its target is another object after pickling; {advice}")


@law(EVERY)
def the_summary_is_one_line(subject: Subject) -> None:
    """The summary is one line of at most 100 characters, for `rlcore show`."""
    summary = subject.it.summary
    require(
        bool(summary.strip()) and "\n" not in summary and len(summary) <= MAX_SUMMARY,
        f"its summary is {summary!r}; register it with one line of at most {MAX_SUMMARY} characters",
    )


@law(EVERY, when=_has_options)
def options_are_light(subject: Subject) -> None:
    """Importing and describing the options, as `rlcore show` does, imports none of torch, transformers and the like."""
    cls = _options(subject)
    reference = subject.it.config_reference
    reference = reference if isinstance(reference, str) else f"{cls.__module__}:{cls.__qualname__}"
    seen = call_in_new_process(
        "rlcore_testing.rig.probes:read_options", {"reference": reference}, what=f"reading {reference}"
    )
    advice = "move the class to a separate module, which imports only rlcore.config"
    require(not seen["heavy"], f"reading {reference} imports {', '.join(seen['heavy'])}; {advice}")


@law(EVERY, when=_has_options)
def options_are_frozen_and_keyword_only(subject: Subject) -> None:
    """The classes of options and of their sections are made with `@rlcore.config.config`: frozen, keyword-only."""
    for cls in _classes(_options(subject)):
        advice = f"decorate {cls.__qualname__} with @rlcore.config.config"
        require(_is_frozen(cls), f"options of {cls.__qualname__} can be changed after validation; {advice}")
        placed = [field.name for field in attrs.fields(cls) if field.init and not field.kw_only]
        require(not placed, f"{cls.__qualname__} takes {', '.join(placed)} by position; {advice}")


@law(EVERY, when=_has_options)
def every_option_has_a_meaning(subject: Subject) -> None:
    """Every option has a meaning of one line, for errors and `rlcore show`."""
    for row in describe(_options(subject)):
        require(
            bool(row.meaning.strip()) and "\n" not in row.meaning,
            f"option '{row.path}' has the meaning {row.meaning!r}; declare it as option(default, 'one-line meaning')",
        )


@law(EVERY, when=_has_options)
def no_option_has_a_reserved_name(subject: Subject) -> None:
    """No option has the name of a key that the core reserves in the component's section, since users cannot set it.

    Reserved are `name`, for a reward also `fn` and `weight`; for an architecture `path`, `architecture` and
    `tokenizer`; for an optimizer `lr`, `betas`, `eps` and `weight_decay`; for a scheduler `num_warmup_steps` and
    `num_training_steps`.
    """
    hidden = sorted(set(RESERVED.get(subject.it.kind, ("name",))) & set(fields(_options(subject))))
    require(not hidden, f"users cannot set the option '{', '.join(hidden)}': the core reserves that key; rename it")


@law(EVERY, when=_has_options)
def defaults_are_valid(subject: Subject) -> None:
    """The defaults, with the options passed to the kit, have the declared types and are in range."""
    config = subject.config()
    try:
        structure(_options(subject), unstructure(config), where="its defaults")
    except ConfigError as error:
        raise LawBroken(f"{error}; correct the default or the declaration of the option") from error


@law(EVERY, when=_has_options)
def options_round_trip(subject: Subject) -> None:
    """Options that are written as YAML, as in every run's record, are equal after they are read again."""
    cls, config = _options(subject), subject.config()
    for how, plain in (("plain values", unstructure(config)), ("YAML", _through_yaml(unstructure(config)))):
        try:
            again = structure(cls, plain, where=how)
        except ConfigError as error:
            raise LawBroken(f"its options cannot be read again as {how}: {error}; declare plain types") from error
        require(again == config, f"as {how}, {config} comes back as {again}; use plain values in options")


@law(EVERY, when=_has_options)
def unknown_options_are_refused(subject: Subject) -> None:
    """A misspelt option raises an error that names the closest option."""
    cls = _options(subject)
    for name in fields(cls):
        misspelt = name + name[-1]
        if misspelt in fields(cls):
            continue
        try:
            structure(cls, {**subject.options, misspelt: 0})
        except ConfigError as error:
            require(
                f"'{name}'" in str(error), f"the error for {misspelt}, misspelt for '{name}', does not name it: {error}"
            )
        else:
            raise LawBroken(f"the unknown option '{misspelt}' is accepted; let rlcore.config check options")


def _arguments(subject: Subject) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return a target's positional and keyword arguments; None for functions that choose their own parameters."""
    from rlcore.protocols import ArchitectureTraits

    target = subject.it.target()
    if ArchitectureTraits(target).kind != LANGUAGE_MODEL:
        return ("spec", "config"), ("tokenizer",)
    if subject.it.kind in ARGUMENTS:
        return ARGUMENTS[subject.it.kind]
    if subject.it.kind in BESIDE_OPTIONS:
        return _keyword_arguments(subject)
    return (("config",), ()) if _has_options(subject) else ARGUMENTS_WITHOUT_OPTIONS[subject.it.kind]


def _keyword_arguments(subject: Subject) -> tuple[tuple[str, ...], tuple[str, ...]]:
    options = tuple(fields(_options(subject))) if _has_options(subject) else ()
    if subject.it.kind == "optimizers":
        return ("groups",), ("lr", *options)
    target: Any = subject.it.target()
    counts = (name for name in (WARMUP, TOTAL) if name in inspect.signature(target).parameters)
    return ("optimizer",), (*counts, *options)


def _options(subject: Subject) -> type:
    found = subject.it.config_class()
    if found is None:
        raise LawBroken(f"{subject.it} no longer has a class of options")
    return found


def _through_yaml(values: dict[str, object]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="rlcore-law-") as folder:
        path = Path(folder) / "options.yaml"
        path.write_text(dump_yaml(values), encoding="utf-8")
        return load_yaml(path)


def _classes(cls: type) -> list[type]:
    """Return a class of options and those of its sections."""
    inner = [section for _, tp in fields(cls).values() if (section := section_class(tp))]
    return [cls, *(each for section in inner for each in _classes(section))]


def _is_frozen(cls: type) -> bool:
    blank: Any = object.__new__(cls)
    try:
        blank.x = 0
    except attrs.exceptions.FrozenInstanceError:
        return True
    except AttributeError:  # a slotted class without an attribute x
        return False
    return False


def _in_main(target: object) -> bool:
    module = getattr(target, "__module__", type(target).__module__)
    return module == "__main__" or (module not in sys.modules and find_spec(module) is None)
