"""The command line: light, so that it answers at once, and guarded, so that it answers while every plugin is broken."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence

from rlcore._version import __version__
from rlcore.errors import RLCoreError

INTERRUPTED = 130
COMMANDS = {
    "train": ("rlcore.cli.train:command", "train as a YAML file says"),
    "list-plugins": (
        "rlcore.cli.list_plugins:command",
        "list installed plugins, what they bring, and what is wrong with them",
    ),
    "show": ("rlcore.cli.show:command", "print the options of a component or a section, or what plugins wrap"),
    "plan": (
        "rlcore.planning.command:command",
        "estimate the memory a run takes of each device, and what to turn down where it does not fit",
    ),
    "rollouts": ("rlcore.cli.rollouts.command:command", "print what a run sampled, in training or at evaluations"),
    "doctor": (
        "rlcore.cli.doctor:command",
        "print what a bug report needs: versions, machine, plugins, and what is wrong",
    ),
    "new-plugin": (
        "rlcore.cli.new_plugin.command:command",
        "write a new package that works, to make your own plugin of",
    ),
}
"""The commands: name, the function that adds the arguments and returns what runs it, summary."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code: 0 success, 1 a reported error, 2 wrong usage, 130 interrupted."""
    arguments = _parse(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # plugins may print letters that its encoding lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code: int = arguments.command(arguments)
        sys.stdout.flush()
    except RLCoreError as error:
        if os.environ.get("RLCORE_DEBUG", "") not in {"", "0"}:
            raise
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("rlcore: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the words of a command; argparse itself takes no key=value that follows a switch which follows another."""
    parser = _parser(words)
    arguments, left = parser.parse_known_args(words)
    if left and ("overrides" not in arguments or any(word.startswith("-") for word in left)):
        parser.error(f"unrecognized arguments: {' '.join(left)}")
    if left:
        arguments.overrides += left
    return arguments


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of all commands, with the arguments of the one that is given."""
    parser = argparse.ArgumentParser(
        prog="rlcore",
        description="Reinforcement-learning fine-tuning of language models, one plugin per algorithm.",
        epilog="RLCORE_DEBUG=1 shows the traceback behind an error.",
    )
    parser.add_argument("--version", action="version", version=f"rlcore {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (reference, summary) in COMMANDS.items():
        described = f"{summary[0].upper()}{summary[1:]}."
        subparser = commands.add_parser(name, help=summary, description=described)
        if name in words[:1]:
            module, _, attribute = reference.partition(":")
            subparser.set_defaults(command=getattr(importlib.import_module(module), attribute)(subparser))
    return parser
