"""The command `rlcore report`: write the page of one run or several, or serve it while they go on."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path


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
    from rlcore_report.local_server import ReportServer
    from rlcore_report.run_files import find_run, holds_runs

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
