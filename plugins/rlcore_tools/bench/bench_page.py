"""The page of a comparison: what got better or worse, and the learning curves of both versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs

from rlcore._version import __version__
from rlcore.safe_text import visible
from rlcore_report.html_page import fill_page
from rlcore_report.page_data import curve_groups, rounded
from rlcore_report.run_record import RunRecord, read_run
from rlcore_report.variants import Variant
from rlcore_tools.bench.measure import Measure
from rlcore_tools.bench.source_tree import Version

METHOD = (
    "The versions ran alternately, each run in a process of its own with one thread. A pair is one seed; the "
    "interval is Student's 95 % interval of the mean paired difference, of times and memory on the logarithms of the "
    "ratios; with --until, the 97.5 % interval, as pairs are added "
    "until they seem enough. A difference counts if its interval excludes 0 and it is at least 1 %."
)


@attrs.frozen
class CaseRuns:
    """The runs of one case.

    Attributes:
        name: the name of the case.
        about: what it does.
        before, after: the folders of the runs of both versions, by seed.
    """

    name: str
    about: str
    before: Sequence[Path]
    after: Sequence[Path]


def bench_page(
    versions: Sequence[Version], cases: Sequence[CaseRuns], measures: Sequence[Measure], failures: Mapping[str, str]
) -> str:
    """Return the page.

    Args:
        versions: the older version, then the newer one.
        cases: the cases that ran.
        measures: what was compared.
        failures: errors of cases that did not run.
    """
    title = " against ".join(visible(version.label) for version in reversed(versions))
    data = {
        "title": title,
        "version": __version__,
        "written": datetime.now().astimezone().isoformat(sep=" ", timespec="minutes"),
        "stamp": "",
        "runs": [],
        "variants": [{"label": visible(version.label), "runs": 1} for version in versions],
        "groups": [group for case in cases for group in _groups(case, versions)],
        **{name: [] for name in ("verdicts", "samples", "options", "ends", "differences")},
        "bench": {
            "versions": [visible(f"{version.label}: {version.about}") for version in versions],
            "method": METHOD,
            "measures": [_measure(measure) for measure in measures],
            "failures": [visible(f"{name}: {failure}") for name, failure in failures.items()],
        },
    }
    return fill_page(data, title=title)


def _groups(case: CaseRuns, versions: Sequence[Version]) -> list[dict[str, Any]]:
    kinds = [
        Variant(version.label, _read(folders))
        for version, folders in zip(versions, (case.before, case.after), strict=True)
    ]
    groups = curve_groups(kinds)
    for group in groups:
        group["title"] = f"{case.name}: {group['title']}"
    return groups


def _read(folders: Sequence[Path]) -> tuple[RunRecord, ...]:
    return tuple(read_run(folder, is_running=False) for folder in folders)


def _measure(measure: Measure) -> dict[str, Any]:
    return {
        "case": visible(measure.case),
        "name": visible(measure.name),
        "before": rounded(measure.before),
        "after": rounded(measure.after),
        "change": measure.shown_change,
        "count": measure.count,
        "word": measure.word,
        "visible": measure.shown_visible,
    }
