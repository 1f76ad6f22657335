"""The command `rlcore rollouts`; what it needs besides its options is imported when it is given."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

from rlcore.errors import ConfigError


def command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Add the arguments of `rlcore rollouts` to its parser, and return what runs it."""
    parser.description = "Print what a run sampled: in the last step there is any of, or as the options ask."
    parser.add_argument("run", metavar="RUN", nargs="?", help="folder, or name under ./runs; lists these if absent")
    parser.add_argument(
        "--step", type=_steps, metavar="N|A:B", help="of step N, or of steps A to B; A or B may be absent"
    )
    parser.add_argument("--best", type=_count, default=0, metavar="N", help="the N with the highest rewards")
    parser.add_argument("--worst", type=_count, default=0, metavar="N", help="the N with the lowest rewards")
    parser.add_argument("--grep", default="", metavar="TEXT", help="where prompt or output holds TEXT, large or small")
    parser.add_argument("--completions", action="store_true", help="of evaluations, instead of training")
    parser.add_argument("--full", action="store_true", help="print long texts whole")
    parser.add_argument("--json", action="store_true", help="print JSON, with a schema number")
    return partial(_rollouts, parser)


def _rollouts(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from rlcore.cli.rollouts import display, read

    query = read.Query(arguments.step, arguments.best, arguments.worst, arguments.grep)
    if arguments.run is None:
        if arguments.completions or not query.is_empty:
            parser.error("the following arguments are required: RUN")
        runs = read.list_runs(read.ROOT)
        if arguments.json:
            print(display.runs_as_json(runs))
        else:
            display.print_runs(runs)
        return 0
    run = read.find_run(arguments.run)
    groups = read.select(run, query, completions=arguments.completions)
    if arguments.json:
        print(display.rollouts_as_json(run, groups))
    else:
        display.print_rollouts(run, groups, whole=arguments.full)
    return 0


def _steps(text: str) -> tuple[int, float]:
    from rlcore.cli.rollouts.read import parse_steps

    try:
        return parse_steps(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number, at least 1")
    return int(text)
