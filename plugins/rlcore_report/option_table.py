"""The options of runs as rows: their values, their defaults, and where runs differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import attrs

from rlcore.config.describe import Row, describe
from rlcore.errors import RLCoreError
from rlcore.plugins.registry import all_registries
from rlcore.safe_text import visible
from rlcore.settings import TrainConfig
from rlcore_report.run_record import RunRecord

UNIMPORTANT = (
    "run.name", "run.root", "run.resume", "run.overwrite", "run.accept_changes", "run.report",
    "run.raise_on_interrupt",
)  # fmt: skip
"""Options that differ between runs and change nothing that a run learns."""
_COMPONENTS = {"trainer": ("trainers", "name"), "model": ("architectures", "architecture")}
_MAX_CHARS = 300


@attrs.frozen
class OptionRow:
    """One option.

    Attributes:
        path: its dotted path.
        values: its value in each run, as JSON; empty where a run does not have it.
        default: its default as JSON; None if that is unknown.
        meaning: what it means.
    """

    path: str
    values: tuple[str, ...]
    default: str | None
    meaning: str

    @property
    def is_changed(self) -> bool:
        """Return whether a run has another value than the default."""
        return self.default is None or any(value and value != self.default for value in self.values)

    @property
    def differs(self) -> bool:
        """Return whether two of the runs have different values of an option that matters.

        One that only some of the runs have, as those of another trainer, counts if a run has changed it.
        """
        is_another_trainers = "" in self.values and not self.is_changed
        return len(set(self.values)) > 1 and self.path not in UNIMPORTANT and not is_another_trainers


def option_rows(runs: Sequence[RunRecord]) -> list[OptionRow]:
    """Return the options of runs, in the order of their files."""
    flat = [flatten(run.config) for run in runs]
    known: dict[str, Row] = {}
    for run in runs:
        known |= _described(run.config)
    paths = dict.fromkeys(path for options in flat for path in options)
    return [
        OptionRow(
            path=visible(path),
            values=tuple(_show(options[path]) if path in options else "" for options in flat),
            default=_show(known[path].default) if path in known else None,
            meaning=known[path].meaning if path in known else "",
        )
        for path in paths
    ]


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a configuration by their dotted paths; empty mappings and lists are leaves."""
    leaves: dict[str, Any] = {}
    for key, value in config.items():
        path = f"{prefix}{key}"
        leaves |= flatten(value, f"{path}.") if isinstance(value, Mapping) and value else {path: value}
    return leaves


def _described(config: Mapping[str, Any]) -> dict[str, Row]:
    """Return what is known of the options: those of the core, of the trainer and of the architecture."""
    rows = {row.path: row for row in _core_rows() if row.path.partition(".")[0] not in _COMPONENTS}
    for section, (kind, key) in _COMPONENTS.items():
        options = config.get(section)
        name = options.get(key) if isinstance(options, Mapping) else None
        if isinstance(name, str):
            rows |= {f"{section}.{row.path}": row for row in _component_rows(kind, name)}
    return rows


@cache
def _core_rows() -> list[Row]:
    return describe(TrainConfig)


def _component_rows(kind: str, name: str) -> list[Row]:
    try:
        options = getattr(all_registries(), kind).get(name).config_class()
    except RLCoreError:  # its plugin may not be installed here
        return []
    return [] if options is None else describe(options)


def _show(value: Any) -> str:
    text = visible(json.dumps(value, ensure_ascii=False, default=str))
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}…"
