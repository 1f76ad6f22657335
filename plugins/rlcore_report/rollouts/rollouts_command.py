"""The arguments of `rlcore rollouts`, and the function that runs it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

from rlcore.errors import ConfigError


def command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Add the arguments of `rlcore rollouts` to its parser, and return the function that runs it."""
    parser.description = "Print rollouts of a run: by default, those of its last step that has any."
    parser.add_argument(
        "run", metavar="RUN", nargs="?", help="folder of a run, or its name under ./runs; if omitted, list those runs"
    )
    parser.add_argument(
        "--step", type=_steps, metavar="N|A:B", help="rollouts of step N, or of steps A to B; A or B may be omitted"
    )
    parser.add_argument("--best", type=_count, default=0, metavar="N", help="the N rollouts with the highest rewards")
    parser.add_argument("--worst", type=_count, default=0, metavar="N", help="the N rollouts with the lowest rewards")
    parser.add_argument(
        "--grep", default="", metavar="TEXT", help="rollouts whose prompt or output contains TEXT, ignoring case"
    )
    parser.add_argument("--completions", action="store_true", help="print completions of evaluations instead")
    parser.add_argument("--full", action="store_true", help="do not truncate long texts")
    parser.add_argument("--json", action="store_true", help="print JSON with a schema number")
    return partial(_rollouts, parser)


def _rollouts(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from rlcore_report.rollouts import display, read
    from rlcore_report.run_files import ROOT, find_run

    query = read.Query(arguments.step, arguments.best, arguments.worst, arguments.grep)
    if arguments.run is None:
        if arguments.completions or not query.is_empty:
            parser.error("the following arguments are required: RUN")
        runs = read.list_runs(ROOT)
        if arguments.json:
            print(display.runs_as_json(runs))
        else:
            display.print_runs(runs)
        return 0
    run = find_run(arguments.run)
    groups = read.select(run, query, completions=arguments.completions)
    if arguments.json:
        print(display.rollouts_as_json(run, groups))
    else:
        display.print_rollouts(run, groups, whole=arguments.full)
    return 0


def _steps(text: str) -> tuple[int, float]:
    from rlcore_report.rollouts.read import parse_steps

    try:
        return parse_steps(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number, at least 1")
    return int(text)
