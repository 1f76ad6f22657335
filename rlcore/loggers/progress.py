"""Make the progress bar of a run."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

REFRESHES_PER_SECOND = 2.0
"""A bar that moves once a step needs no more, and the thread that draws it shares the processor with training."""
ESTIMATE_OVER_S = 3600.0
"""The time left is judged by the steps of this long; rich's half minute holds too few of them."""


def make_progress(console: Console) -> Progress:
    """Return a bar with the steps done, the time taken and the time left; it appears once started."""
    return Progress(
        TextColumn("training"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        refresh_per_second=REFRESHES_PER_SECOND,
        speed_estimate_period=ESTIMATE_OVER_S,
    )
