"""Completion of the command line in bash, from the parsers of the commands, those of plugins included.

`complete -o default -C "rlcore --complete" rlcore` turns it on: bash then runs `rlcore --complete` for each completion,
with the line in COMP_LINE and the position of the cursor in COMP_POINT.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from rlcore.cli.parser import command_names, command_parser
from rlcore.errors import RLCoreError


def complete(environ: Mapping[str, str]) -> list[str]:
    """List the words that may stand at the cursor; none where bash is to complete the name of a file."""
    line = environ.get("COMP_LINE", "")
    words = line[: int(environ.get("COMP_POINT", len(line)))].split(" ")
    *before, current = words[1:] or [""]
    before = [word for word in before if word]
    if not before:
        found = ["--commands", "--help", "--version"] if current.startswith("-") else command_names()
    else:
        found = _arguments(before, current)
    return sorted(word for word in found if word.startswith(current))


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
