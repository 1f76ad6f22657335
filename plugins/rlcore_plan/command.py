"""The command `rlcore plan`; light: the modules that it runs are imported on use."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

from rlcore.safe_text import write


def command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Add the arguments of `rlcore plan` to its parser, and return the function that runs it."""
    parser.description = (
        "Estimate the memory that a run takes on each device, phase by phase, from its configuration and "
        "without reading weights. If the run does not fit, list changes that save memory."
    )
    parser.add_argument("file", type=Path, metavar="FILE.yaml", help="configuration, as for `rlcore train`")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="an option by its path, such as gen.batch_size=8"
    )
    parser.add_argument("--world", type=_count, default=1, metavar="N", help="number of processes, one per device")
    parser.add_argument(
        "--device-memory", metavar="SIZE", help="such as 24GB; if omitted, the memory of this machine's device"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, sizes in bytes, with a schema number")
    return _plan


def _plan(arguments: argparse.Namespace) -> int:
    import gc
    import sys

    from rlcore.config import load_yaml, merge, parse_overrides
    from rlcore_plan.sizes import parse_size

    given = None if arguments.device_memory is None else parse_size(arguments.device_memory)
    values = merge(load_yaml(arguments.file), parse_overrides(arguments.overrides))
    where = f"{arguments.file} + command line" if arguments.overrides else str(arguments.file)
    from rlcore_plan.advice import advise
    from rlcore_plan.estimate import device_memory, estimate
    from rlcore_plan.heap import Heap
    from rlcore_plan.report import report_as_json, write_report

    gc.freeze()  # each estimate collects garbage; imported modules need not be searched
    heap = Heap()
    with redirect_stdout(sys.stderr):  # output of a model's or a user's module
        found = estimate(values, where, world=arguments.world, heap=heap)
        limit, limit_from = device_memory(found.device) if given is None else (given, "given (--device-memory)")
        with heap.closed():  # the holes are measurable only in a process that has freed little
            advice = advise(values, where, found, limit) if found.peak > limit else []
    if arguments.json:
        print(report_as_json(found, limit, advice))
    else:
        write(write_report(found, limit, limit_from, advice))
    return 0


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number, at least 1")
    return int(text)
