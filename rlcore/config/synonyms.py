"""What to write instead of an unknown name: a near match, the option of another section, or a synonym.

Packages know the names of other libraries: an entry point in the group `rlcore.synonyms` names a function that takes a
name and its kind, as `find_synonym` does, and returns a `Synonym` or None. It is imported when an error needs it.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from typing import ParamSpec, TypeVar

import attrs

from rlcore.errors import UnknownArgument

P = ParamSpec("P")
R = TypeVar("R")
GROUP = "rlcore.synonyms"
MISSPELT = 0.85
"""Similarity of an unknown name to a known one (`difflib`) above which it is taken for a misspelling."""


@attrs.frozen
class Synonym:
    """What replaces a name of another library.

    Attributes:
        name: its name there.
        alternatives: dotted paths of the options that replace it here, of which a run has one group, or the name of a
            component; empty if there is no counterpart.
        how: how the value converts or which options to set, or why there is no counterpart.
    """

    name: str
    alternatives: tuple[tuple[str, ...], ...]
    how: str = ""

    @property
    def ours(self) -> str:
        """Return the options here as text."""
        return " or ".join(" and ".join(paths) for paths in self.alternatives)


_everywhere: dict[str, list[str]] = {}


def index_options(paths: Iterable[str]) -> None:
    """Register the dotted paths of the options of a whole configuration, for the errors of unknown ones."""
    for path in paths:
        known = _everywhere.setdefault(path.rpartition(".")[2], [])
        known += [path] if path not in known else []


@functools.cache
def find_synonym(name: str, kind: str = "options") -> Synonym | None:
    """Return what replaces a name of another library, by the first package that knows it.

    Args:
        name: the name, in any section.
        kind: `options`, or a kind of component, such as `optimizers`.
    """
    for point in entry_points(group=GROUP):
        with suppress(Exception):  # an error is being reported, which a broken package must not hide
            found: Synonym | None = point.load()(name, kind)
            if found is not None:
                return found
    return None


def replacement(name: str, known: Collection[str]) -> str:
    """Return what to write instead of an unknown option, as text; empty if no library has an option of this name.

    Args:
        name: the unknown option.
        known: the options of the section in which it was written; those of a trainer rule out other trainers' options.
    """
    found = find_synonym(name)
    if found is None:
        return ""
    is_trainer = "micro_batch_size" in known
    fitting = [
        paths
        for paths in found.alternatives
        if not is_trainer or not paths[0].startswith("trainer.") or paths[0].split(".")[1] in known
    ]
    if found.alternatives and not fitting:
        return ""
    use = " or ".join(" and ".join(paths) for paths in (fitting[:1] if is_trainer else fitting))
    return f"use {use}{f' ({found.how})' if found.how else ''}" if use else found.how


def unknown_name(name: str, known: list[str], *, kind: str = "option", below: Sequence[str] = ()) -> str:
    """Return what is wrong with an unknown option or argument, and what to write instead.

    Args:
        name: the unknown name.
        known: the names in its place.
        kind: what it should have been.
        below: paths of the options of this name in the sections of the same place; by default the whole
            configuration is searched.
    """
    near = difflib.get_close_matches(name, known, n=1)
    # A letter too few is likelier than the name of another library; the latter is likelier than a distant resemblance.
    is_misspelt = bool(near) and difflib.SequenceMatcher(None, name, near[0]).ratio() >= MISSPELT
    instead = "" if is_misspelt else replacement(name, known)
    elsewhere = below or ([] if find_synonym(name) else _everywhere.get(name))
    if elsewhere and not is_misspelt:
        instead = f"did you mean {' or '.join(elsewhere)}?"
    hint = instead or (f"did you mean '{near[0]}'?" if near else f"there are {', '.join(known)}")
    return f"no such {kind}; {hint}"


def explain_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function with an error for unknown arguments that names the option of that meaning."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def explained(*args: P.args, **kwargs: P.kwargs) -> R:
        unknown = [name for name in kwargs if name not in known]
        if unknown:
            raise UnknownArgument("\n".join(_explain(function.__name__, name, known) for name in unknown))
        return function(*args, **kwargs)

    return explained


def _explain(function: str, name: str, known: Collection[str]) -> str:
    found, text = find_synonym(name), unknown_name(name, list(known), kind="argument")
    groups = [_everywhere[name]] if found is None and name in _everywhere else found.alternatives if found else ()
    if not groups or "'?" in text:  # a misspelt argument
        return f"{function}: {name}: {text}"
    written = dict.fromkeys(_as_argument(path, known) for paths in groups for path in paths)
    return f"{function}: {name}: {text}; as an argument: {' or '.join(written)}"


def _as_argument(path: str, known: Collection[str]) -> str:
    section, *steps = path.split(".")
    if steps and steps[-1] in known:
        return f"{steps[-1]}=..."
    value = "..."
    for step in reversed(steps):
        value = f'{{"{step}": {value}}}'
    return f"{section}={value}"
