"""The command `rlcore report`: write the page of one run or several, or serve it while they go on."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path


def command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Add the arguments of `rlcore report` to its parser, and return the function that runs it."""
    parser.description = "Write curves, completions, options and health verdicts of runs to one HTML file."
    parser.add_argument("runs", metavar="RUN", nargs="+", help="folder of a run, or its name under ./runs")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="file to write; default: report.html, of a single run in its folder",
    )
    parser.add_argument("--serve", action="store_true", help="serve the page on this machine until Ctrl-C instead")
    parser.add_argument("--port", type=int, default=0, help="port of --serve; default: a free one")
    return _report


def _report(arguments: argparse.Namespace) -> int:
    from rlcore.safe_text import write
    from rlcore_report.html_page import html_page
    from rlcore_report.run_files import find_run
    from rlcore_report.run_record import read_run, write_page

    folders = list(dict.fromkeys(map(find_run, arguments.runs)))
    if arguments.serve:
        return _serve(folders, arguments.port)
    file: Path = arguments.out or (folders[0] / "report.html" if len(folders) == 1 else Path("report.html"))
    write_page(file, html_page([read_run(folder) for folder in folders]))
    write(f"wrote {file} ({file.stat().st_size / 1e6:.1f} MB)")
    return 0


def _serve(folders: Sequence[Path], port: int) -> int:
    from rlcore.safe_text import write
    from rlcore_report.local_server import ReportServer

    with ReportServer(folders, port=port) as server:
        write(f"{server.url} follows {', '.join(map(str, folders))}; Ctrl-C ends it")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0
