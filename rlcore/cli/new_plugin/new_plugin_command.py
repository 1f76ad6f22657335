"""The command `rlcore new-plugin`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from rlcore.cli.new_plugin.kinds import KINDS


def command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Add the arguments of `rlcore new-plugin` to its parser, and return what runs it."""
    parser.description = "Write a new package that works and tests itself, to make your own plugin of."
    parser.add_argument(
        "name", metavar="NAME", help="of the package, as pip will know it: small letters, digits and '-'"
    )
    parser.add_argument("--kind", choices=list(KINDS), default="trainer", help="what it brings; a trainer if absent")
    parser.add_argument("--path", type=Path, metavar="DIR", help="folder to make; NAME in this one if absent")
    return _new_plugin


def _new_plugin(arguments: argparse.Namespace) -> int:
    from rlcore.cli.new_plugin.write import new_plugin, next_commands

    for file in new_plugin(arguments.name, kind=arguments.kind, path=arguments.path):
        print(file)
    print("\nnext:")
    for command in next_commands(arguments.name, kind=arguments.kind, path=arguments.path):
        print(f"  {command}")
    return 0
