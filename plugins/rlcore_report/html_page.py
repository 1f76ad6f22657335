"""A report as one HTML file: its script, its style, the charting library and its data, with nothing to fetch.

The texts of a run are data. The page's script puts them into text nodes only, and the page's content security policy
lets the browser run no script but the two of this package, which it names by their hashes, and fetch nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from rlcore.checkpoints.run_folder import RunDir
from rlcore.components import describe_error
from rlcore.logging import get_logger
from rlcore.safe_text import visible
from rlcore_report.page_data import page_data
from rlcore_report.run_record import RunRecord, read_run, write_page

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body{live}>
<main id="page"><noscript>This page needs JavaScript.</noscript></main>
<script type="application/json" id="data">{data}</script>
<script>{library}</script>
<script>{script}</script>
</body>
</html>
"""


def write_report(folder: Path) -> Path:
    """Write the report of one run, which no longer runs, to its folder; return the file.

    Raises:
        OSError: the file cannot be written.
    """
    file = RunDir(folder).report
    write_page(file, html_page([read_run(folder, is_running=False)]))
    return file


def record_report(folder: Path) -> None:
    """Write the report of a run that has ended; if there is no room for it, log that: the run itself is complete."""
    try:
        write_report(folder)
    except OSError as error:
        get_logger("report").warning("report.html could not be written", run=str(folder), reason=describe_error(error))


def html_page(runs: Sequence[RunRecord], *, stamp: str | None = None) -> str:
    """Return the page of one run or several.

    Args:
        runs: the runs.
        stamp: as in `page_data`; the page then asks the server that it came from for newer data. None: it is a file.
    """
    title = ", ".join(visible(run.name) for run in runs[:3]) + (", …" if len(runs) > 3 else "")
    return fill_page(page_data(runs, stamp=stamp or ""), title=title, live=stamp is not None)


def fill_page(data: Mapping[str, Any], *, title: str, live: bool = False) -> str:
    """Return a page that shows data of the form of `page_data`.

    Args:
        data: what it shows.
        title: its title in the browser, after `rlcore:`.
        live: whether it asks the server that it came from for newer data.
    """
    library, script, style = _assets()
    policy = (
        f"default-src 'none'; script-src {_hash(library)} {_hash(script)}; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src '{'self' if live else 'none'}'; base-uri 'none'; form-action 'none'"
    )
    return _PAGE.format(
        policy=policy, title=_escape(f"rlcore: {title}"), style=style, live=' data-live="data.json"' if live else "",
        data=to_script(data), library=library, script=script,
    )  # fmt: skip


def to_script(data: Any) -> str:
    """Return data as JSON that no text in it can end: `<`, `>` and `&` are escaped, and all else is ASCII."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


@cache
def _assets() -> tuple[str, str, str]:
    """Return the charting library (uPlot, MIT licence, see page/uPlot.LICENSE), the page's script, and its style."""
    folder = files("rlcore_report") / "page"
    library, script, chart_style, style = (
        (folder / name).read_text(encoding="utf-8").strip()
        for name in ("uPlot.iife.min.js", "page.js", "uPlot.min.css", "page.css")
    )
    return library, script, f"{chart_style}\n{style}"


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
