"""The command `rlcore preview`; light: the modules that it runs are imported on use."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path


def command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Add the arguments of `rlcore preview` to its parser, and return the function that runs it."""
    parser.description = (
        "Show what a run would train on and sample from, without loading its model: the first rows as tokens, with "
        "those in the loss, the sampling prompt beside the training prompt, text that the chat template drops, and the "
        "lengths of all rows."
    )
    parser.add_argument("file", type=Path, metavar="FILE.yaml", help="configuration, as for `rlcore train`")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="an option by its path, such as data.turns=each"
    )
    parser.add_argument("--rows", type=_count, default=4, metavar="N", help="number of rows to show (default: 4)")
    parser.add_argument("--json", action="store_true", help="print JSON, with a schema number")
    return _preview


def _preview(arguments: argparse.Namespace) -> int:
    import sys

    from rlcore.config import load_yaml, merge, parse_overrides
    from rlcore_tools.equal_rows import read_data
    from rlcore_tools.shown_rows import print_json, print_sources

    values = merge(load_yaml(arguments.file), parse_overrides(arguments.overrides))
    where = f"{arguments.file} + command line" if arguments.overrides else str(arguments.file)
    with redirect_stdout(sys.stderr):  # output of a user's module
        sources = read_data(values, where, num_rows=arguments.rows)
    (print_json if arguments.json else print_sources)(sources)
    return 0


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number, at least 1")
    return int(text)
