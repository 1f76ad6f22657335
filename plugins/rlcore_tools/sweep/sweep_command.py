"""The command `rlcore sweep`; light: the modules that it runs are imported on use."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlcore_tools.sweep.screen import Study
    from rlcore_tools.sweep.sweep_folder import SweepFolder
    from rlcore_tools.sweep.sweep_options import Sweep

OPTIONS = (
    "metric", "trials", "parallel", "sampler", "prune", "min_steps", "reduction", "value", "seed", "time_s",
    "trial_time_s", "max_failed", "keep_best", "on",
)  # fmt: skip
"""Options of the section `sweep` that are arguments too, with `-` in place of `_`."""


def command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Add the arguments of `rlcore sweep` to its parser, and return the function that runs it."""
    from rlcore.config import describe
    from rlcore_tools.sweep.sweep_options import SweepConfig

    parser.description = (
        "Search values of options that give a run the best metric, with Optuna. Each trial is an `rlcore train` of its "
        "own. The same command continues a sweep that was interrupted or killed: finished trials are kept, and others "
        "resume from their last checkpoint."
    )
    parser.add_argument(
        "file", type=Path, nargs="?", metavar="FILE.yaml", help="configuration, with a section `sweep` or not"
    )
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=space",
        help="an option and its values: uniform(low, high), loguniform(low, high), quniform(low, high, step), "
        "int(low, high), logint(low, high), a list such as [0,1,2], or one value for all trials",
    )  # fmt: skip
    rows = {row.path: row for row in describe(SweepConfig)}
    for name in OPTIONS:
        row = rows[name]
        default = "" if row.default is None else f" (default: {row.default})"
        choices = row.type.split(" | ") if name in ("sampler", "prune", "value", "on") else None
        metavar = None if choices else (row.unit or "value").upper()
        text = f"{row.meaning}{default}".replace("%", "%%")
        parser.add_argument(_flag(name), dest=f"sweep_{name}", choices=choices, metavar=metavar, help=text)
    parser.add_argument("--minimize", action="store_true", help="a lower metric is better")
    parser.add_argument("--space", type=Path, metavar="SPACE.yaml", help="another file with a section `sweep`")
    parser.add_argument("--folder", type=Path, help="folder of the sweep; default: sweeps/ and the name of the file")
    parser.add_argument("--overwrite", action="store_true", help="delete the sweep in the folder and begin again")
    parser.add_argument("--show", type=Path, metavar="FOLDER", help="show the sweep in a folder instead")
    return partial(_sweep, parser)


def _flag(name: str) -> str:
    return f"--{name.removesuffix('_s').replace('_', '-')}"


def _sweep(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from rlcore.config import parse_overrides

    if arguments.show is not None:
        return _show(arguments.show)
    if arguments.file is None:
        parser.error("the following arguments are required: FILE.yaml (or --show FOLDER)")
    if "=" in str(arguments.file) and not arguments.file.exists():
        parser.error(f"FILE.yaml must come before {arguments.file}")
    import optuna  # noqa: F401  before anything is checked, which takes longer

    from rlcore_tools.sweep.sweep_options import check_sweep, read_sweep

    texts = {name: getattr(arguments, f"sweep_{name}") for name in OPTIONS}
    given = parse_overrides([f"{name}={text}" for name, text in texts.items() if text is not None])
    if arguments.minimize:
        given["mode"] = "min"
    sweep = read_sweep(arguments.file, arguments.overrides, given, space=arguments.space, folder=arguments.folder)
    check_sweep(sweep)
    return run(sweep, overwrite=arguments.overwrite)


def run(sweep: Sweep, *, overwrite: bool = False, **loop: Any) -> int:
    """Run a sweep, show its progress, and write its best configuration and its report.

    Args:
        sweep: the sweep.
        overwrite: delete the sweep that is in the folder.
        loop: further attributes of the loop.
    """
    import signal

    from rlcore.loggers.console import make_console
    from rlcore_tools.sweep.child import visible_gpus
    from rlcore_tools.sweep.ray import cluster_of
    from rlcore_tools.sweep.screen import LineScreen, LiveScreen
    from rlcore_tools.sweep.succession import write_best
    from rlcore_tools.sweep.sweep_folder import SweepFolder, claim
    from rlcore_tools.sweep.sweep_loop import SweepLoop

    console = make_console()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: trials save and end
    try:
        with SweepFolder(sweep.folder).locked(), cluster_of(sweep) as variables:
            folder = claim(sweep, overwrite=overwrite)
            study = open_study(sweep, folder)
            gpus = visible_gpus() if sweep.options.parallel > 1 and sweep.options.on == "local" else []
            screen = LiveScreen(console, sweep, study) if console.is_terminal else LineScreen(console)
            loop_ = SweepLoop(sweep, folder, study, screen, gpus, variables=variables, **loop)
            try:
                with screen:
                    if (size := study.size()) is not None:
                        screen.note(
                            f"a grid of {size} combinations, of which {min(size, sweep.options.trials)} are tried"
                        )
                    loop_.run()
            finally:
                write_best(sweep, folder, study)
                _finish(sweep, study, folder)
            return 0 if study.best() is not None else 1
    finally:
        signal.signal(signal.SIGTERM, before)


def open_study(sweep: Sweep, folder: SweepFolder) -> Study:
    """Open or create the study of a sweep.

    Raises:
        ConfigError: the file is no study, or cannot be opened.
    """
    from sqlalchemy.exc import SQLAlchemyError

    from rlcore.errors import ConfigError
    from rlcore_tools.sweep.screen import Study

    run_, eval_ = sweep.base.get("run"), sweep.base.get("eval")
    steps = run_.get("steps") if isinstance(run_, dict) else None
    every = eval_.get("every") if isinstance(eval_, dict) and sweep.options.metric.startswith("eval/") else None
    try:
        return Study(
            folder.study, sweep.options, sweep.dimensions, total_steps=steps if isinstance(steps, int) else None,
            min_steps=every if isinstance(every, int) and every > 0 else 1,
        )  # fmt: skip
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise ConfigError(
            f"{folder.study}: cannot be opened as the study of a sweep: {reason}; restore the file, or begin again "
            "with --overwrite"
        ) from error


def _finish(sweep: Sweep, study: Study, folder: SweepFolder) -> None:
    """Print the trials and the best one, and write the report."""
    from rlcore.loggers.console import make_console
    from rlcore.safe_text import write
    from rlcore_tools.sweep.report import write_report
    from rlcore_tools.sweep.screen import summary, trial_table
    from rlcore_tools.sweep.space import show_value

    records = study.records()
    console = make_console()
    console.print()
    console.print(trial_table(records, sweep, {}))
    write(summary(records))
    best = study.best()
    if best is not None and best.value is not None:
        values = sweep.values(best.parameters)
        shown = ", ".join(f"{path}={show_value(value)}" for path, value in values.items())
        write(f"best: trial {best.number}, {sweep.options.metric} {best.value:.6g}: {shown}")
        if folder.best.is_file():
            write(f"rlcore train {folder.best}")
    write(f"wrote {write_report(sweep, study, folder)}")


def _show(path: Path) -> int:
    from rlcore.config import structure
    from rlcore.errors import ConfigError
    from rlcore_tools.sweep.space import read_space
    from rlcore_tools.sweep.sweep_folder import SweepFolder, read_record
    from rlcore_tools.sweep.sweep_options import SECTION, Sweep, SweepConfig

    record, folder = read_record(path), SweepFolder(path)
    options = structure(SweepConfig, record.pop(SECTION), where=str(folder.record), path=SECTION)
    if not folder.study.is_file():
        raise ConfigError(f"{folder.study} is missing: no trial of this sweep has begun")
    dimensions, _ = read_space(options.space)
    sweep = Sweep(options, record, tuple(dimensions), path, str(folder.record))
    _finish(sweep, open_study(sweep, folder), folder)
    return 0
