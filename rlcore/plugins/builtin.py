"""The plugin of the core, which registers the built-in components; and those of published plugins.

The latter are named by errors about missing plugins, from data (`published.json`, written at each release), so the code
of the core names no plugin.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import attrs

from rlcore.hookspecs import Register, hookimpl


@attrs.frozen
class Published:
    """A component of a published plugin, or an option of the core that the plugin implements.

    Attributes:
        dist: the dist of the plugin.
        extra: the extra of the dist that installs the library which the component needs, or empty.
        plugin: for an option of the core, the entry point of the dist that implements it; empty if any of them may.
        default_for: for a trainer, the inputs for which it is the default.
    """

    dist: str
    extra: str = ""
    plugin: str = ""
    default_for: tuple[str, ...] = ()


def how_to_install(dist: str, extra: str = "") -> str:
    """Return the command that installs the dist of a published plugin, by name and from a clone of the repository."""
    table, needed = _table(), (*_table()["requires"].get(dist, ()), dist)
    folders = [f"./{table['folders'].get(each, 'plugins/' + each.replace('-', '_'))}" for each in needed]
    by_name, in_a_clone = (f"pip install {_with_extra(what, extra)}" for what in (dist, " ".join(folders)))
    return f"{by_name} (in a clone of rlcore: {in_a_clone})"


def _with_extra(what: str, extra: str) -> str:
    *others, last = what.split(" ")
    return " ".join([*others, f"'{last}[{extra}]'" if extra else last])


@functools.cache
def published(kind: str) -> dict[str, Published]:
    """Return the published components of a kind (such as `trainers`) by short name, or `options` by dotted path."""
    return {
        name: Published(**{**entry, "default_for": tuple(entry.get("default_for", ()))})
        for name, entry in _table().get(kind, {}).items()
    }


@functools.cache
def _table() -> dict[str, Any]:
    table: dict[str, object] = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))
    return table


COMMANDS = (
    ("train", "rlcore.cli.parser:command", "train with the configuration of a YAML file"),
    (
        "list-plugins",
        "rlcore.cli.list_plugins:command",
        "list installed plugins, their components and their problems",
    ),
)
"""The core's commands: name, target, summary. The command line reads this table first; no plugin can override it."""


@hookimpl
def register_rollout_stores(register: Register) -> None:
    """Register the in-memory rollout store."""
    register("memory", "rlcore.training.rollout:MemoryStore", summary="keeps rollouts in the memory of the process")


@hookimpl
def register_loggers(register: Register) -> None:
    """Register the console and JSON Lines loggers."""
    register(
        "console",
        "rlcore.loggers.console:ConsoleLogger",
        config="rlcore.loggers.console:ConsoleConfig",
        summary="one line per step, with a progress bar on a terminal",
    )
    register("jsonl", "rlcore.loggers.jsonl:JsonlLogger", summary="metrics.jsonl and completions.jsonl; always enabled")


@hookimpl
def register_shardings(register: Register) -> None:
    """Register the strategy that divides nothing."""
    register("none", "rlcore.sharding:build_none", summary="every process has the whole model")


@hookimpl
def register_commands(register: Register) -> None:
    """Register the core's commands, so that plugin commands of the same name are reported as conflicts."""
    for name, target, summary in COMMANDS:
        register(name, target, summary=summary)
