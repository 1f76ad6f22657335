"""The command `rlcore train`; torch and the training loop are imported only when the command runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from rlcore.cli.local_processes import processes_to_start, start
from rlcore.logging import FORMATS, LEVELS


def command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Add the arguments of `rlcore train` to its parser, and return the function that runs it."""
    parser.add_argument("file", type=Path, metavar="FILE.yaml", help="configuration; `rlcore show` lists the options")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="override an option, such as trainer.clip=0.1"
    )
    parser.add_argument("--log-level", choices=list(LEVELS), help="log events at this level and above")
    parser.add_argument("--log-format", choices=list(FORMATS), help="explicit: prefix events with file, line and rank")
    parser.add_argument("--profile", action="store_true", help="write a time profile, as run.profile=true does")
    parser.add_argument("--no-progress", action="store_true", help="do not show a progress bar")
    return partial(_train, parser)


def _train(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    import traceback

    from rlcore import logging
    from rlcore.config import load_yaml, merge, parse_overrides

    if arguments.log_level is not None:
        logging.set_verbosity(arguments.log_level)
    if arguments.log_format is not None:
        formats = {"plain": logging.reset_format, "explicit": logging.enable_explicit_format}
        formats[arguments.log_format]()
    if arguments.no_progress:
        logging.disable_progress_bar()
    if arguments.profile and "torch" in arguments.overrides:
        parser.error("argument --profile: takes no value; for 'torch', write run.profile=torch instead")
    overrides = parse_overrides(arguments.overrides)
    values = merge(load_yaml(arguments.file), overrides)
    if arguments.profile:
        run = overrides.get("run")
        if isinstance(run, Mapping) and run.get("profile") is False:
            parser.error("argument --profile: not allowed with run.profile=false")
        run = values.get("run")
        if run is None or (isinstance(run, Mapping) and not run.get("profile")):
            values = merge(values, {"run": {"profile": True}})
    where = f"{arguments.file} + command line" if overrides or arguments.profile else str(arguments.file)
    if (processes := processes_to_start(values, where)) > 1:
        return start(processes, arguments.words)
    from rlcore.components import describe_error
    from rlcore.errors import PluginError
    from rlcore.training.api import train_from_config

    try:
        train_from_config(values, where)
    except SystemExit as error:  # its code would be this command's, and 0 look like a run that has finished
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise PluginError(
            f"{frame.filename}:{frame.lineno} raised {describe_error(error)}, which ends no run; raise another "
            "exception to report a failure"
        ) from error
    return 0
