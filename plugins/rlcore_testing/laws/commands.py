"""Laws of commands: their help is light and complete, and wrong usage exits with 2."""

from __future__ import annotations

import argparse
import contextlib
import io
from collections.abc import Callable
from typing import Any

from rlcore_testing.law import LawBroken, Subject, law, require
from rlcore_testing.rig.isolate import call_in_new_process

COMMANDS = "commands"
WRONG_USAGE = 2
UNKNOWN = "--no-option-of-this-command"


@law(COMMANDS)
def it_returns_the_function_that_runs_it(subject: Subject) -> None:
    """The target adds its arguments to the parser it receives and returns the function that runs the command."""
    run = _fill(subject)[1]
    require(callable(run), f"its target returned {run!r:.80}; return the function that takes the parsed arguments")


@law(COMMANDS)
def help_is_light(subject: Subject) -> None:
    """`--help` exits with 0 and imports none of torch, transformers, datasets and accelerate."""
    name = subject.it.qualified
    seen = call_in_new_process("rlcore_testing.rig.probes:run_help", {"command": name}, what=f"rlcore {name} --help")
    advice = "import it in the function that the target returns"
    require(not seen["heavy"], f"rlcore {name} --help imports {', '.join(seen['heavy'])}; {advice}")
    require(
        seen["code"] == 0, f"rlcore {name} --help exits with {seen['code']!r} and prints {seen['printed'][-200:]!r}"
    )


@law(COMMANDS)
def every_argument_has_a_meaning(subject: Subject) -> None:
    """Every argument has a help text, and the command's help can be printed."""
    parser, _ = _fill(subject)
    try:
        parser.format_help()
    except (ValueError, TypeError, KeyError) as error:
        raise LawBroken(f"its help cannot be printed: {error}; write %% for a percent sign in a help text") from error
    for action in parser._actions:  # noqa: SLF001  argparse has no public way to list them
        name = "/".join(action.option_strings) or action.metavar or action.dest
        require(bool(action.help), f"its argument {name} has no help; pass help='...' to add_argument")


@law(COMMANDS)
def an_unknown_option_is_wrong_usage(subject: Subject) -> None:
    """An unknown option exits with 2 and does not reach the command."""
    parser, _ = _fill(subject)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            parser.parse_args([UNKNOWN])
    except SystemExit as left:
        require(left.code == WRONG_USAGE, f"{UNKNOWN} exits with {left.code!r}; let the parser report wrong usage")
    else:
        raise LawBroken(f"{UNKNOWN} is accepted; let the parser reject unknown options")


def _fill(subject: Subject) -> tuple[argparse.ArgumentParser, Callable[[argparse.Namespace], int]]:
    target: Any = subject.it.target()
    parser = argparse.ArgumentParser(prog=f"rlcore {subject.it.name}")
    return parser, target(parser)
