"""The arguments of `rlcore new-plugin`, and the function that runs it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from rlcore_tools.new_plugin.write import KINDS


def command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Add the arguments of `rlcore new-plugin` to its parser, and return the function that runs it."""
    parser.description = "Write a working plugin package with tests, as a starting point for your own plugin."
    parser.add_argument("name", metavar="NAME", help="name of the package for pip: lower-case letters, digits and '-'")
    parser.add_argument("--kind", choices=list(KINDS), default="trainer", help="kind of component; default: trainer")
    parser.add_argument("--path", type=Path, metavar="DIR", help="folder to create; default: ./NAME")
    return _new_plugin


def _new_plugin(arguments: argparse.Namespace) -> int:
    from rlcore_tools.new_plugin.write import new_plugin, next_commands

    for file in new_plugin(arguments.name, kind=arguments.kind, path=arguments.path):
        print(file)
    print("\nnext:")
    for command in next_commands(arguments.name, kind=arguments.kind, path=arguments.path):
        print(f"  {command}")
    return 0
