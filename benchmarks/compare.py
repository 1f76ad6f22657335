"""Compare two JSON result files of the suite.

    python -m benchmarks.compare A.json B.json

The compared figure is the ratio ours / theirs, which does not depend on the machine's speed; without `theirs`, it is
our own figure, which does. A duel is marked if its median moved by more than the wider of the two spreads (maximum
minus minimum of the repeats).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.tables import number, ranged
from rlcore_tools.bench.duel import Figures


def rows(first: Figures, second: Figures) -> Iterator[tuple[str, str, Figures | None, Figures | None]]:
    """Yield case, duel and both results, in the first file's order, then the duels that only the second file has."""
    for case in dict.fromkeys([*first["cases"], *second["cases"]]):
        ours, other = (sitting["cases"].get(case, {}).get("duels", {}) for sitting in (first, second))
        for duel in dict.fromkeys([*ours, *other]):
            yield case, duel, ours.get(duel), other.get(duel)


def compared(row: Figures | None) -> Figures | None:
    """Return the spread to compare: that of the ratio, or of our figure if there is no `theirs`."""
    if row is None or "failure" in row:
        return None
    spread: Figures | None = row["ratio"] if "theirs" in row else row["ours"]
    return None if spread is None or None in spread.values() else spread


def verdict(first: Figures, second: Figures, better: str) -> tuple[float, str]:
    """Return the second median divided by the first, and a verdict.

    Without repeats there is no spread, and the verdict is `one run each`.
    """
    change, widths = second["median"] / first["median"], [spread["max"] - spread["min"] for spread in (first, second)]
    if max(widths) == 0:
        return change, "one run each" if change != 1 else "same"
    if abs(second["median"] - first["median"]) <= max(widths):
        return change, "within the spread"
    return change, "BETTER" if (change > 1) == (better == "more") else "WORSE"


def comparison(first: Figures, second: Figures) -> Table:
    """Return the table of all duels of two result files."""
    table = Table("case", "duel", "A", "B", "B / A", "")
    for case, duel, one, other in rows(first, second):
        before, after = compared(one), compared(other)
        if before is None or after is None:
            missing = " and ".join(name for name, spread in (("A", before), ("B", after)) if spread is None)
            table.add_row(case, duel, ranged(before), ranged(after), "", f"nothing in {missing}")
            continue
        change, said = verdict(before, after, (other or {})["better"])
        table.add_row(case, duel, ranged(before), ranged(after), number(change), said)
    return table


def read(path: Path) -> Figures:
    """Read a result file of the suite.

    Raises:
        OSError: the file does not exist.
        ValueError: the file was not written by the suite.
    """
    try:
        sitting: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: is not JSON: {error}") from error
    if not (isinstance(sitting, dict) and "cases" in sitting):
        raise ValueError(f"{path}: holds no cases, so the suite did not write it")
    found: Figures = sitting
    return found


def main() -> None:
    """Parse the command line and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    options = parser.parse_args()
    try:
        sittings = [read(path) for path in (options.first, options.second)]
    except (OSError, ValueError) as error:
        parser.error(str(error))
    console = Console(width=180, highlight=False)
    for name in dict.fromkeys([*sittings[0], *sittings[1]]):
        before, after = (sitting.get(name) for sitting in sittings)
        if name not in ("cases", "date", "commit") and before != after:
            console.print(f"{name} differs: {before} in A, {after} in B")
    console.print(comparison(*sittings))


if __name__ == "__main__":
    main()
