"""Draw the packages of this repository above the core, each below those that require it, from their metadata."""

from __future__ import annotations

import re
import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORE = "rlcore"
WIDTH, MARGIN, GAP = 940, 20, 10
PER_ROW, HEIGHT = 5, 50
COLOURS = (("#eef7ee", "#5a9a5a"), ("#f3f6fb", "#5b7fb8"), ("#fdf5e8", "#c68a2e"), ("#f8f0f8", "#8e5a9a"))
"""Fill and outline of the packages that require the core alone, and of each level above."""
FONT = 'font-family="Helvetica, Arial, sans-serif"'
CONTENTS = "hooks, registries, configuration, runs and their folders, ranks, rewards, updates"
LEVELS = ("require the core alone", "require packages of the level below", "require packages of the levels below")


def requirements(root: Path = ROOT) -> dict[str, set[str]]:
    """Return the packages of the repository, each with those of them that it requires."""
    files = [root / "pyproject.toml", *root.glob("rlcore_*/pyproject.toml"), *root.glob("plugins/*/pyproject.toml")]
    projects = [tomllib.loads(file.read_text(encoding="utf-8"))["project"] for file in files]
    needed = {each["name"]: {_name(line) for line in each["dependencies"]} for each in projects}
    return {name: needs & needed.keys() - {CORE} for name, needs in needed.items() if name != CORE}


def level_of(name: str, needs: dict[str, set[str]]) -> int:
    """Return the level of a package: 0 if it requires the core alone, else one above the highest that it requires."""
    return max((level_of(each, needs) + 1 for each in needs[name]), default=0)


def pages() -> dict[str, str]:
    """Return a mapping from the picture's path to its text."""
    return {"images/houses.svg": draw(requirements())}


def draw(needs: dict[str, set[str]]) -> str:
    """Return the picture as SVG."""
    shapes: list[str] = []
    top = MARGIN
    for level in sorted({level_of(name, needs) for name in needs}, reverse=True):
        names = sorted(name for name in needs if level_of(name, needs) == level)
        shapes.append(_text(MARGIN, top + 12, LEVELS[min(level, len(LEVELS) - 1)], 12, "start"))
        top += 20
        for start in range(0, len(names), PER_ROW):
            for place, name in enumerate(names[start : start + PER_ROW]):
                shapes += _house(name, sorted(needs[name]), place, top, COLOURS[min(level + 1, len(COLOURS) - 1)])
            top += HEIGHT + GAP
        top += GAP
    shapes += [
        _box(MARGIN, top, WIDTH - 2 * MARGIN, COLOURS[0]),
        _text(WIDTH / 2, top + 22, CORE, 16, "middle"),
        _text(WIDTH / 2, top + 40, CONTENTS, 12, "middle"),
    ]
    height = top + HEIGHT + MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" stroke-width="1.4" role="img" {FONT}>',
        "<title>The packages of this repository, each above what it requires</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        *shapes,
        "</svg>",
    ]
    return "\n".join([*lines, ""])


def _house(name: str, needs: list[str], place: int, top: int, colour: tuple[str, str]) -> list[str]:
    width = (WIDTH - 2 * MARGIN - (PER_ROW - 1) * GAP) / PER_ROW
    left = MARGIN + place * (width + GAP)
    below = ", ".join(each.removeprefix("rlcore-") for each in needs)
    return [
        _box(left, top, width, colour),
        _text(left + width / 2, top + (22 if below else 30), name, 14, "middle"),
        *([_text(left + width / 2, top + 40, f"on {below}", 11, "middle")] if below else []),
    ]


def _box(left: float, top: int, width: float, colour: tuple[str, str]) -> str:
    fill, line = colour
    return f'<rect x="{left:g}" y="{top}" width="{width:g}" height="{HEIGHT}" rx="6" fill="{fill}" stroke="{line}"/>'


def _text(x: float, y: float, text: str, size: int, anchor: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="#222">{escape(text)}</text>'


def _name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower().replace("_", "-")
