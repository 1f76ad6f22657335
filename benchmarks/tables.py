"""Result tables: one table per case, one row per duel and one for each of its other figures."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from rlcore_tools.bench.duel import Figures

NEVER = "never"
VERDICTS = {True: "yes", False: "no", None: ""}


def case_table(name: str, result: Figures) -> Table:
    """Return a case's table: both medians with their ranges, the ratio, the goal, and whether it is reached."""
    table = Table(title=f"{name}: {result['title']}", title_justify="left")
    for title in ("duel", "figure", "ours", "theirs", "ratio", "by CPU", "goal", "reached", "peak MB"):
        table.add_column(title, justify="left" if title in ("duel", "figure") else "right")
    for duel, row in result["duels"].items():
        table.add_row(duel, *(["failed"] if "failure" in row else _cells(row)))
        for figure, other in row.get("others", {}).items():
            sides = [ranged(other.get(side)) for side in ("ours", "theirs", "ratio")]
            table.add_row("", figure, *sides, "", goals(other), VERDICTS[other["reached"]])
    return table


def _cells(row: Figures) -> list[str]:
    peaks = " / ".join(f"{peak:.0f}" for peak in row["peak_rss_mb"].values())
    return [
        row["figure"],
        ranged(row["ours"]),
        ranged(row.get("theirs")),
        ranged(row.get("ratio")),
        ranged(row.get("cpu", {}).get("ratio")),
        goals(row),
        VERDICTS[row["reached"]],
        peaks,
    ]


def ranged(spread: Mapping[str, float | None] | None) -> str:
    """Format a median with its range: `1.08 (1.06 .. 1.12)`."""
    if spread is None:
        return "-"
    middle, least, most = (number(spread[key]) for key in ("median", "min", "max"))
    return middle if least == most else f"{middle} ({least} .. {most})"


def number(value: float | None) -> str:
    """Format a number with three significant figures, thousands in full."""
    if value is None:
        return NEVER
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def goals(row: Figures) -> str:
    """Format the bounds of the ratio and of our own figure."""
    sign = ">=" if row["better"] == "more" else "<="
    bounds = [("x ", row["goal"]), ("", row["own_goal"])]
    return ", ".join(f"{sign} {number(bound)}{unit.strip()}" for unit, bound in bounds if bound is not None)
