"""A report as one HTML file: its script, its style, the charting library and its data, with nothing to fetch.

The texts of a run are data. The page's script puts them into text nodes only, and the page's content security policy
lets the browser run no script but those of this package, which it names by their hashes, and fetch nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from rlcore.checkpoints.run_folder import RunDir
from rlcore.components import describe_error
from rlcore.logging import get_logger
from rlcore.safe_text import visible
from rlcore_report.page_data import page_data
from rlcore_report.run_record import read_run, write_page

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<main id="page"><noscript>This page needs JavaScript.</noscript></main>
<script type="application/json" id="data">{data}</script>
{scripts}
</body>
</html>
"""


LIBRARIES = ("uPlot.iife.min.js", "htm-preact.umd.js")
SCRIPTS = (
    "view.js",
    "elements.js",
    "charts.js",
    "plots.js",
    "answer.js",
    "comparison.js",
    "samples.js",
    "runs.js",
    "app.js",
)
STYLES = ("uPlot.min.css", "page.css", "parts.css")


def write_report(folder: Path) -> Path:
    """Write the report of one run, which no longer runs, to its folder; return the file.

    Raises:
        OSError: the file cannot be written.
    """
    file = RunDir(folder).report
    write_page(file, report_page([folder], is_running=False))
    return file


def record_report(folder: Path) -> None:
    """Write the report of a run that has ended; if there is no room for it, log that: the run itself is complete."""
    try:
        write_report(folder)
    except OSError as error:
        get_logger("report").warning("report.html could not be written", run=str(folder), reason=describe_error(error))


def report_page(folders: Sequence[Path], *, is_running: bool | None = None) -> str:
    """Return the page of runs on disk, complete in itself; of a run that cannot be shown it has the error."""
    names = [visible(folder.resolve().name) for folder in folders[:3]]
    title = ", ".join(names) + (", …" if len(folders) > 3 else "")
    return _filled(readable_data(folders, is_running=is_running), title=title)


def readable_data(
    folders: Sequence[Path], *, stamp: str = "", keys: Sequence[str] = (), is_running: bool | None = None
) -> str:
    """Return the data of a page as JSON. Runs that cannot be shown are left out, and are named with their errors.

    Args:
        folders: the runs' folders.
        stamp: tells a page that asks again whether anything has changed.
        keys: the keys of the runs in the list of a dashboard.
        is_running: see `read_run`.
    """
    good = [folder for folder in folders if folder.is_dir()]
    unreadable = [
        _unreadable(each, f"its folder {each} has been deleted or moved") for each in folders if each not in good
    ]
    while True:
        try:
            data = page_data([read_run(folder, is_running=is_running) for folder in good], stamp=stamp, keys=keys)
            return to_script(data | {"unreadable": unreadable})
        except Exception as error:  # the files of a run may contain anything, and change meanwhile
            alone = {folder: found for folder in good if (found := _problem(folder))}
            bad = alone or dict.fromkeys(good, describe_error(error))
            if not bad:
                raise
        unreadable += [_unreadable(each, bad[each]) for each in bad]
        good = [folder for folder in good if folder not in bad]


def _unreadable(folder: Path, problem: str) -> dict[str, str]:
    return {"name": visible(folder.resolve().name), "problem": visible(problem)}


def _problem(folder: Path) -> str:
    """Return the error that the page of a single run ends with; empty if there is none."""
    try:
        to_script(page_data([read_run(folder)]))
    except Exception as error:  # noqa: BLE001  the files of a run may contain anything
        return describe_error(error)
    return ""


def shell_page(data: Mapping[str, object]) -> str:
    """Return the page of a dashboard, which asks the server that it came from for everything else."""
    return fill_page(data, title="runs", live=True)


def fill_page(data: Mapping[str, object], *, title: str, live: bool = False) -> str:
    """Return a page that shows data of the form of `page_data`.

    Args:
        data: what it shows.
        title: its title in the browser, after `rlcore:`.
        live: whether it may ask the server that it came from for newer data.
    """
    return _filled(to_script(data), title=title, live=live)


def _filled(data: str, *, title: str, live: bool = False) -> str:
    scripts, style = _assets()
    return _PAGE.format(
        policy=policy_of(live=live), title=_escape(f"rlcore: {title}"), style=style, data=data,
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )  # fmt: skip


def policy_of(*, live: bool) -> str:
    """Return the content security policy of a page: its own scripts, no request but, if live, to its server."""
    scripts, _ = _assets()
    source = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src {' '.join(map(_hash, scripts))}; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src {source}; base-uri 'none'; form-action 'none'"
    )


def to_script(data: object) -> str:
    """Return data as JSON that no text in it can end: `<`, `>` and `&` are escaped, and all else is ASCII."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


@cache
def _assets() -> tuple[tuple[str, ...], str]:
    """Return the scripts of the page, the libraries first (page/*.LICENSE), and its style."""
    folder = files("rlcore_report") / "page"
    parts = {name: (folder / name).read_text(encoding="utf-8").strip() for name in (*LIBRARIES, *SCRIPTS, *STYLES)}
    script = "\n".join(parts[name] for name in SCRIPTS)
    return (*(parts[name] for name in LIBRARIES), f'"use strict";\n{script}'), "\n".join(parts[name] for name in STYLES)


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
