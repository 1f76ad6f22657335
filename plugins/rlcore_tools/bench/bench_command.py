"""The command `rlcore bench`; light: the modules that it runs are imported on use."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
PREFIX = "case_"


def command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Add the arguments of `rlcore bench` to its parser, and return the function that runs it."""
    names = ", ".join(standard_cases())
    parser.description = (
        "Build two versions of the repository in this folder, each in a virtual environment of its own, train with "
        "both alternately, and print whether learning, CPU time, wall time and peak memory are better, "
        "the same or worse, and how small a change would have been found. Ctrl-C compares what has run."
    )
    parser.add_argument("--against", required=True, metavar="GITREF", help="the older version: branch, tag or hash")
    parser.add_argument(
        "ref", nargs="?", metavar="GITREF", help="the newer version; default: the working tree, uncommitted changes too"
    )
    parser.add_argument(
        "--case", action="append", default=[], metavar="CASE",
        help=f"one of {names}, or a Python file such as theirs; repeatable; default: all of them",
    )  # fmt: skip
    parser.add_argument("--seeds", type=_seeds, default=5, metavar="N", help="runs of each version; default: 5")
    parser.add_argument(
        "--until", type=_share, metavar="PERCENT",
        help="run further seeds until a change of the CPU time of steps by so much, such as 5%%, would be found in 80 "
        "of 100 comparisons, by 97.5 %% intervals; at least 5 and at most 100",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="less work, for a first look")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="folder with rt_polarity.jsonl, for `reviews`")
    parser.add_argument(
        "--out", type=Path, default=Path("bench.html"), metavar="FILE", help="the page; default: bench.html"
    )
    return _bench


def standard_cases() -> dict[str, Path]:
    """Return the files of the cases of this package by their names."""
    return {path.stem.removeprefix(PREFIX): path for path in sorted(HERE.glob(f"{PREFIX}*.py"))}


def _bench(arguments: argparse.Namespace) -> int:
    import signal
    from tempfile import TemporaryDirectory

    from rlcore.errors import ConfigError
    from rlcore.loggers.console import make_console
    from rlcore.safe_text import write
    from rlcore_tools.bench.contest import Contest
    from rlcore_tools.bench.measure import FEWEST_PAIRS, LEVEL, REPEATED_LEVEL, say_power
    from rlcore_tools.bench.source_tree import Repository

    standard = standard_cases()
    named = dict.fromkeys(arguments.case)
    cases = {Path(name).stem: standard.get(name, Path(name)) for name in named} or standard
    if len(cases) < len(named):
        raise ConfigError(f"--case {', '.join(named)}: two cases have the same name; rename one of the files")
    for name, file in cases.items():
        if not file.is_file():
            raise ConfigError(f"--case {name}: is no case and no file; cases are {', '.join(standard)}")
    if not arguments.out.resolve().parent.is_dir():
        raise ConfigError(f"--out {arguments.out}: its folder does not exist; create it first")
    repository = Repository(Path.cwd())
    versions = (
        repository.commit(arguments.against),
        repository.working_tree() if arguments.ref is None else repository.commit(arguments.ref),
    )
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the folder below is removed
    try:
        with TemporaryDirectory(prefix="rlcore-bench-") as scratch:
            contest = Contest(repository, versions, Path(scratch), console=make_console())
            contest.build()
            if arguments.until is None:
                write(say_power(arguments.seeds, LEVEL))
            else:
                write(say_power(max(arguments.seeds, FEWEST_PAIRS), REPEATED_LEVEL))
            try:
                for name, file in cases.items():
                    contest.run(
                        name, file.resolve(), seeds=arguments.seeds, quick=arguments.quick, data=arguments.data,
                        until=arguments.until,
                    )  # fmt: skip
            finally:  # also after Ctrl-C
                if contest.measures or contest.failures:
                    contest.report(arguments.out)
    finally:
        signal.signal(signal.SIGTERM, before)
    return int(bool(contest.failures))


def _seeds(text: str) -> int:
    if not (text.isdecimal() and int(text) > 1):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number, at least 2: an interval needs two pairs")
    return int(text)


def _share(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a percentage above 0 and below 100, such as 5%")
    return share
