"""Bash completion of commands and their arguments, from the argument parsers of the core and of plugins.

`complete -o default -C "rlcore --complete" rlcore` turns it on: for each completion, bash then runs `rlcore --complete`
with the command line in COMP_LINE and the position of the cursor in COMP_POINT.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from rlcore.cli.parser import command_names, command_parser
from rlcore.cli.trainer_command import trainer_names
from rlcore.errors import RLCoreError


def complete(environ: Mapping[str, str]) -> list[str]:
    """Return the completions of the word at the cursor; an empty list if bash should complete a file name."""
    line = environ.get("COMP_LINE", "")
    words = line[: int(environ.get("COMP_POINT", len(line)))].split(" ")
    *before, current = words[1:] or [""]
    before = [word for word in before if word]
    if not before:
        candidates = (
            ["--commands", "--help", "--version"] if current.startswith("-") else [*command_names(), *trainer_names()]
        )
    else:
        candidates = _arguments(before, current)
    return sorted(word for word in candidates if word.startswith(current))


def _arguments(before: list[str], current: str) -> list[str]:
    try:
        parser = command_parser(before[0])
    except RLCoreError:  # an unknown or broken command has no completions
        return []
    actions = parser._actions  # noqa: SLF001  argparse has no public way to list them
    last = next((action for action in actions if before[-1] in action.option_strings), None)
    if last is not None and last.nargs != 0:
        return _choices(last)
    if current.startswith("-"):
        return [option for action in actions for option in action.option_strings]
    return [choice for action in actions if not action.option_strings for choice in _choices(action)]


def _choices(action: argparse.Action) -> list[str]:
    return [] if action.choices is None else list(map(str, action.choices))
