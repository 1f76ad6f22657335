"""Names that users of TRL, trlX and `transformers` bring, and the options that replace them (`synonyms.toml`)."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs

from rlcore.config.yaml_files import Synonym

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@attrs.frozen
class LibraryName(Synonym):
    """An option or component of another library.

    Attributes:
        values: the value here for each value there, as text; empty if values stay the same.
        negated: whether true becomes false.
        same: whether the value stays the same in spite of `how`.
    """

    values: Mapping[str, Any] = _NOTHING
    negated: bool = False
    same: bool = False


@functools.cache
def synonyms(library: str) -> dict[str, LibraryName]:
    """Return the options of `trl`, `generate` or `trlx` (with their section), or the names of `component_names`."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).get(library, {})
    return {name: _read(name, {"ours": entry} if isinstance(entry, str) else entry) for name, entry in table.items()}


def _read(name: str, entry: Mapping[str, Any]) -> LibraryName:
    rest = {key: value for key, value in entry.items() if key != "ours"}
    groups = filter(None, entry["ours"].split(" or "))
    return LibraryName(name, tuple(tuple(group.split(" and ")) for group in groups), **rest)


_ACCEPTED = {"optimizers": "optim", "schedulers": "lr_scheduler_type"}
"""Kind of component → the option of TRL whose values are names of such components."""


@functools.cache
def component_names(kind: str) -> dict[str, LibraryName]:
    """Return the names of other libraries for components of a kind, in small letters; `how` has options to set."""
    values = synonyms("trl")[_ACCEPTED[kind]].values if kind in _ACCEPTED else _NOTHING
    found = {name: LibraryName(name, ((ours,),)) for name, ours in values.items()} | synonyms(kind)
    return {name.lower(): synonym for name, synonym in found.items()}


def find_synonym(name: str, kind: str) -> LibraryName | None:
    """Return the option of another library that is called `name`, in any section, or its component of a kind."""
    if kind != "options":
        return component_names(kind).get(name.lower())
    short = name.rpartition(".")[2]
    in_sections = {other.partition(".")[2]: found for other, found in synonyms("trlx").items()}
    whole = synonyms("trl").get(short) or synonyms("generate").get(short) or synonyms("trlx").get(name)
    return whole or in_sections.get(short)
