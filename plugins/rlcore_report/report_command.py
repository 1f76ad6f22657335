"""The command `rlcore report`: write the page of one run or several, or serve it while they go on.

Also in this file: the command `rlcore compare`: what differs between two runs, in text.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from rlcore_report.run_record import RunRecord
    from rlcore_report.variants import Difference


def command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Add the arguments of `rlcore report` to its parser, and return the function that runs it."""
    parser.description = "Write curves, completions, options and health verdicts of runs to one HTML file."
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="+",
        help="folder of a run, or its name under ./runs; with --serve, also one of runs",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="file to write; default: report.html, of a single run in its folder",
    )
    parser.add_argument("--serve", action="store_true", help="serve a dashboard on this machine until Ctrl-C instead")
    parser.add_argument("--port", type=int, default=0, help="port of --serve; default: a free one")
    return _report


def _report(arguments: argparse.Namespace) -> int:
    from rlcore.errors import ConfigError
    from rlcore.safe_text import write
    from rlcore_report.html_page import report_page
    from rlcore_report.run_files import find_run
    from rlcore_report.run_record import write_page

    if arguments.serve and arguments.out is not None:
        raise ConfigError(f"--out {arguments.out}: --serve writes no file: leave one of them out")
    if arguments.port and not arguments.serve:
        raise ConfigError(f"--port {arguments.port}: needs --serve, which serves a dashboard there")
    if arguments.serve:
        return _serve(arguments.runs, arguments.port)
    folders = list(dict.fromkeys(map(find_run, arguments.runs)))
    file: Path = arguments.out or (folders[0] / "report.html" if len(folders) == 1 else Path("report.html"))
    write_page(file, report_page(folders))
    write(f"wrote {file} ({file.stat().st_size / 1e6:.1f} MB)")
    return 0


def _serve(names: Sequence[str], port: int) -> int:
    from rlcore.errors import ConfigError
    from rlcore.safe_text import write
    from rlcore_report.run_files import find_run, holds_runs
    from rlcore_report.run_list import ReportServer

    roots = list(dict.fromkeys(Path(name) for name in names if name and holds_runs(Path(name))))
    folders = list(dict.fromkeys(find_run(name) for name in names if not name or Path(name) not in roots))
    try:
        server = ReportServer(folders, roots=roots, port=port)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"--port {port}: the dashboard cannot be served there: {error}; 0 takes a free port"
        ) from error
    with server:
        write(f"{server.url} follows {', '.join(map(str, [*roots, *folders]))}; Ctrl-C ends it")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0


def compare(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Add the arguments of `rlcore compare` to its parser, and return the function that runs it."""
    parser.description = (
        "Print options, metrics and verdicts that differ between two runs, with 95 % intervals over evaluation "
        "prompts. Runs that differ in their seeds alone may be joined by commas, and are then paired by seed."
    )
    parser.add_argument("a", metavar="A", help="folder of a run or its name under ./runs, or several joined by commas")
    parser.add_argument("b", metavar="B", help="the run, or runs, to compare with it")
    return _compare


def _compare(arguments: argparse.Namespace) -> int:
    from rlcore.loggers.console import make_console
    from rlcore_report.answer import main_metric
    from rlcore_report.run_files import find_run
    from rlcore_report.run_record import read_run
    from rlcore_report.variants import LAST_REWARD, Variant, compare_variants

    a, b = (
        Variant(names, tuple(read_run(find_run(name)) for name in names.split(",")))
        for names in (arguments.a, arguments.b)
    )
    console = make_console()
    _print_ends(console, (*a.runs, *b.runs))
    _print_table(console, ("option", a.label, b.label), _options(a.runs[0], b.runs[0]), "No option differs.")
    main = main_metric(a.runs[0].metrics, a.runs[0].headline)
    found = sorted(compare_variants(a, b), key=lambda each: each.name not in (main, LAST_REWARD))
    rows = [_row(each) for each in found]
    _print_table(console, ("metric", a.label, b.label, "B - A", "pairs", ""), rows, "The runs share no metric.")
    for run in (*a.runs, *b.runs):
        _print_verdicts(console, run)
    return 0


def _print_ends(console: Console, runs: Sequence[RunRecord]) -> None:
    """Print how each run ended, and warn if what is compared has not come equally far."""
    from rich.text import Text

    for run in runs:
        lines = [f"{run.name}: {run.end.sentence}", *([f"  {run.end.command}"] if run.end.command else [])]
        console.print(Text("\n".join(lines)), soft_wrap=True)
    steps = {run.last_step for run in runs}
    if len(steps) > 1 and any(run.end.state != "finished" for run in runs):
        text = f"These runs have not made equally many steps ({min(steps)} to {max(steps)})"
        console.print(Text(f"{text}: their last metrics may differ for that alone."), style="yellow")
    console.print()


def _options(a: RunRecord, b: RunRecord) -> list[Sequence[str]]:
    from rlcore_report.variants import option_rows

    return [(row.path, *row.values) for row in option_rows([a, b]) if row.differs]


def _row(each: Difference) -> Sequence[str]:
    from rlcore_report.lines import show_number

    numbers = [show_number(number).strip() for number in (each.a, each.b, each.mean, each.half_width)]
    interval = "" if each.count < 2 else f" ± {numbers[3]}"
    return each.name, numbers[0], numbers[1], f"{numbers[2]}{interval}", f"{each.count} {each.pairs}", each.verdict


def _print_table(console: Console, head: Sequence[str], rows: Iterable[Sequence[str]], otherwise: str) -> None:
    from rich.text import Text

    from rlcore.loggers.console import make_list

    table = make_list(*head)
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table if table.row_count else otherwise)
    console.print()


def _print_verdicts(console: Console, run: RunRecord) -> None:
    from rich.text import Text

    from rlcore.checkpoints.run_folder import RunDir
    from rlcore_report.samples_on_page import prompts_by_step, read_samples
    from rlcore_report.verdicts import verdicts

    prompts = prompts_by_step(read_samples(RunDir(run.folder).rollouts).rows)
    found = [each for each in verdicts(run.metrics, prompts, run.config) if each.level != "good"]
    console.print(Text(f"{run.name}: {'no problem found' if not found else ''}".rstrip()))
    for each in [each for each in found if not each.follows]:
        begun = "" if each.step is None else f" (from step {each.step})"
        remedy = f"; set {each.option} to {each.value}" if each.option else ""
        console.print(Text(f"  {each.name}{begun}: {each.evidence}{remedy}"))
    if following := [each.name for each in found if each.follows]:
        console.print(Text(f"    from the first follow: {', '.join(following)}"))
    for note in run.notes:
        console.print(Text(f"  {note}"))
