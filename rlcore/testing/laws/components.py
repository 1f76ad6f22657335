"""Laws about every component, of whatever kind: its name, its target, its options."""

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

from rlcore.components import KINDS
from rlcore.config import describe, dump_yaml, load_yaml, structure, unstructure
from rlcore.config.describe import fields, section_class
from rlcore.errors import ConfigError, PluginError
from rlcore.optim.options import BESIDE_OPTIONS, TOTAL, WARMUP
from rlcore.plugins.metadata import CORE
from rlcore.plugins.registry import all_registries
from rlcore.rewards.forms import OWN_KEYS
from rlcore.testing.law import EVERY, LawBroken, Subject, is_not_the_core, law, require
from rlcore.testing.rig.isolate import call_anew
from rlcore.training.choose import MODEL_KEYS

NAME = re.compile(r"[a-z0-9]+([_.-][a-z0-9]+)*")
MAX_NAME, MAX_SUMMARY = 30, 100
TAKEN = {"architectures": MODEL_KEYS, "rewards": OWN_KEYS, **BESIDE_OPTIONS}
"""Kind → keys of its section that the core reads itself; `name`, for every other kind."""
GIVEN: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "trainers": (("config", "run"), ()),
    "loggers": (("config", "run"), ()),
    "commands": (("parser",), ()),
    "architectures": (("spec", "config"), ("tokenizer", "value_head", "reference")),
}
"""Kind → what its components are given by position, and by name."""
GIVEN_WITHOUT_OPTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]] | None] = {
    "rollout_stores": ((), ()),
    "samplers": (("policy", "prompts", "sampling"), ("generator",)),
    "pipelines": (("source", "tokenizer", "config"), ("max_length", "what")),
    "rewards": None,
}
"""The same of the other kinds, where a component has no options; with some it is given these alone."""


def _has_options(subject: Subject) -> bool:
    """Tell whether it has options."""
    return subject.it.config_reference is not None


@law(EVERY)
def the_name_is_legal(subject: Subject) -> None:
    """The name is lower case, of letters and digits with '-', '_' or '.' between them, and at most 30 characters."""
    name = subject.it.name
    require(
        NAME.fullmatch(name) is not None and len(name) <= MAX_NAME,
        f"'{name}' is not lower case, or too long; take one such as 'my-algo', of {MAX_NAME} characters at most",
    )


@law(EVERY, when=is_not_the_core)
def the_name_is_not_the_cores(subject: Subject) -> None:
    """No component of the core has this name and kind: users could then use the short name for neither."""
    kind = subject.it.kind
    ours = {component.name for component in getattr(all_registries(), kind) if component.dist == CORE}
    require(
        subject.it.name not in ours,
        f"rlcore brings a {KINDS[kind]} '{subject.it.name}' itself; choose a name of your own, as with your package's "
        "name before it",
    )


@law(EVERY)
def the_target_imports(subject: Subject) -> None:
    """The target can be imported, and called."""
    try:
        target = subject.it.target()
    except PluginError as error:
        raise LawBroken(f"{error}; correct the reference that is registered, or the module it leads to") from error
    require(callable(target), f"its target {subject.it.reference!r} is {target!r}, which cannot be called")


@law(EVERY)
def the_target_takes_what_it_is_given(subject: Subject) -> None:
    """The target can be called with what rlcore gives to components of its kind, by position and by name as it does.

    A store, sampler, pipeline or reward with options is given these alone, and what it returns is used; an optimizer or
    scheduler is given each of its options by name.
    """
    target: Any = subject.it.target()
    try:
        signature = inspect.signature(target)
    except (ValueError, TypeError):  # what is written in another language need not say
        return
    given = _given(subject)
    if given is None:
        return
    placed, named = given
    try:
        signature.bind(*placed, **dict.fromkeys(named))
    except TypeError as error:
        called = ", ".join([*placed, *(f"{name}=..." for name in named)])
        raise LawBroken(
            f"it is called with ({called}), and takes {signature}: {error}; give it these parameters, in this order"
        ) from error


@law(EVERY)
def the_target_pickles(subject: Subject) -> None:
    """The target is pickled by its name in a module, so that spawned workers can be given it."""
    target: Any = subject.it.target()
    advice = "define it at the top of a module that can be imported, under its own name"
    require(not _in_main(target), f"its target is defined in __main__; {advice}")
    try:
        again = pickle.loads(pickle.dumps(target))  # noqa: S301  it was pickled a moment ago
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise LawBroken(f"its target does not pickle: {error}; {advice}") from error
    by_name = isinstance(target, type) or hasattr(target, "__qualname__")
    require(not by_name or again is target, f"its target is another object after pickling; {advice}")


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
    """Importing and describing the options, as `rlcore show` does, imports none of torch and its like."""
    cls = _options(subject)
    reference = subject.it.config_reference
    reference = reference if isinstance(reference, str) else f"{cls.__module__}:{cls.__qualname__}"
    seen = call_anew("rlcore.testing.rig.probes:read_options", {"reference": reference}, what=f"reading {reference}")
    advice = "put the class into a module of its own, which imports rlcore.config only"
    require(not seen["heavy"], f"reading {reference} brings {', '.join(seen['heavy'])}; {advice}")


@law(EVERY, when=_has_options)
def options_are_frozen_and_given_by_name(subject: Subject) -> None:
    """The class of options, and those of its sections, are made with `@rlcore.config.config`: frozen, keyword-only."""
    for cls in _classes(_options(subject)):
        advice = f"decorate {cls.__qualname__} with @rlcore.config.config"
        require(_is_frozen(cls), f"options of {cls.__qualname__} can be changed after they were checked; {advice}")
        placed = [field.name for field in attrs.fields(cls) if field.init and not field.kw_only]
        require(not placed, f"{cls.__qualname__} takes {', '.join(placed)} by position; {advice}")


@law(EVERY, when=_has_options)
def every_option_has_a_meaning(subject: Subject) -> None:
    """Every option says in one line what it means, for errors and `rlcore show`."""
    for row in describe(_options(subject)):
        require(
            bool(row.meaning.strip()) and "\n" not in row.meaning,
            f"option '{row.path}' means {row.meaning!r}; declare it as option(default, 'what it means, in one line')",
        )


@law(EVERY, when=_has_options)
def no_option_has_a_key_of_the_core(subject: Subject) -> None:
    """No option is called like a key that the core reads itself where the component is chosen.

    That is `name`; for a reward `fn` and `weight` too; for an architecture `path`, `architecture` and `tokenizer`
    instead, for an optimizer `lr`, `betas`, `eps` and `weight_decay`, for a scheduler `num_warmup_steps` and
    `num_training_steps`. Nobody could set such an option.
    """
    hidden = sorted(set(TAKEN.get(subject.it.kind, ("name",))) & set(fields(_options(subject))))
    require(not hidden, f"nobody can set the option '{', '.join(hidden)}': the core reads that key itself; rename it")


@law(EVERY, when=_has_options)
def defaults_are_valid(subject: Subject) -> None:
    """The defaults, with the options the kit was given, are of the declared types and in range."""
    config = subject.config()
    try:
        structure(_options(subject), unstructure(config), where="its defaults")
    except ConfigError as error:
        raise LawBroken(f"{error}; correct the default, or what is declared of the option") from error


@law(EVERY, when=_has_options)
def options_round_trip(subject: Subject) -> None:
    """Options written as YAML, as the record of every run holds them, are the same options when they are read again."""
    cls, config = _options(subject), subject.config()
    for how, plain in (("plain values", unstructure(config)), ("YAML", _through_yaml(unstructure(config)))):
        try:
            again = structure(cls, plain, where=how)
        except ConfigError as error:
            raise LawBroken(f"its options cannot be read again as {how}: {error}; declare plain types") from error
        require(again == config, f"as {how}, {config} comes back as {again}; hold plain values in options")


@law(EVERY, when=_has_options)
def unknown_options_are_refused(subject: Subject) -> None:
    """A misspelt option is an error that names the nearest one there is."""
    cls = _options(subject)
    for name in fields(cls):
        misspelt = name + name[-1]
        if misspelt in fields(cls):
            continue
        try:
            structure(cls, {**subject.options, misspelt: 0})
        except ConfigError as error:
            require(f"'{name}'" in str(error), f"{misspelt}, a slip for '{name}', is refused with: {error}")
        else:
            raise LawBroken(f"option '{misspelt}', which there is not, is accepted; let rlcore.config check options")


def _given(subject: Subject) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Name what a target is given by position and by name; None for a function that may ask for what it likes."""
    if subject.it.kind in GIVEN:
        return GIVEN[subject.it.kind]
    if subject.it.kind in BESIDE_OPTIONS:
        return _given_by_name(subject)
    return (("config",), ()) if _has_options(subject) else GIVEN_WITHOUT_OPTIONS[subject.it.kind]


def _given_by_name(subject: Subject) -> tuple[tuple[str, ...], tuple[str, ...]]:
    options = tuple(fields(_options(subject))) if _has_options(subject) else ()
    if subject.it.kind == "optimizers":
        return ("groups",), ("lr", *options)
    target: Any = subject.it.target()
    told = (name for name in (WARMUP, TOTAL) if name in inspect.signature(target).parameters)
    return ("optimizer",), (*told, *options)


def _options(subject: Subject) -> type:
    found = subject.it.config_class()
    if found is None:
        raise LawBroken(f"{subject.it} has no class of options any more")
    return found


def _through_yaml(values: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="rlcore-law-") as folder:
        path = Path(folder) / "options.yaml"
        path.write_text(dump_yaml(values), encoding="utf-8")
        return load_yaml(path)


def _classes(cls: type) -> list[type]:
    """List a class of options and those of its sections."""
    inner = [section for _, tp in fields(cls).values() if (section := section_class(tp))]
    return [cls, *(each for section in inner for each in _classes(section))]


def _is_frozen(cls: type) -> bool:
    blank: Any = object.__new__(cls)
    try:
        blank.x = 0
    except attrs.exceptions.FrozenInstanceError:
        return True
    except AttributeError:  # a slotted class without such an option
        return False
    return False


def _in_main(target: Any) -> bool:
    module = getattr(target, "__module__", type(target).__module__)
    return module == "__main__" or (module not in sys.modules and find_spec(module) is None)
