"""The plugin of the core, which registers the built-in components."""

from __future__ import annotations

from rlcore.hookspecs import Register, hookimpl

COMMANDS = (
    ("train", "rlcore.cli.train:command", "train with the configuration of a YAML file"),
    (
        "list-plugins",
        "rlcore.cli.list_plugins:command",
        "list installed plugins, their components and their problems",
    ),
    ("show", "rlcore.cli.show:command", "print the options of a component or section, or the wrappers of components"),
    ("init", "rlcore.cli.init_command:command", "write a configuration file with every option as a comment"),
)
"""The core's commands: name, target, summary. The command line reads this table first; no plugin can override it."""


@hookimpl
def register_rollout_stores(register: Register) -> None:
    """Register the in-memory rollout store."""
    register("memory", "rlcore.training.store:MemoryStore", summary="keeps rollouts in the memory of the process")


@hookimpl
def register_loggers(register: Register) -> None:
    """Register the console and JSON Lines loggers."""
    register(
        "console",
        "rlcore.loggers.console:ConsoleLogger",
        config="rlcore.loggers.console_options:ConsoleConfig",
        summary="one line per step, with a progress bar on a terminal",
    )
    register("jsonl", "rlcore.loggers.jsonl:JsonlLogger", summary="metrics.jsonl and completions.jsonl; always enabled")


@hookimpl
def register_shardings(register: Register) -> None:
    """Register the strategy that divides nothing."""
    register("none", "rlcore.sharding.whole:build_none", summary="every process has the whole model")


@hookimpl
def register_commands(register: Register) -> None:
    """Register the core's commands, so that plugin commands of the same name are reported as conflicts."""
    for name, target, summary in COMMANDS:
        register(name, target, summary=summary)
