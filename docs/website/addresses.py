"""Where each file of the repository is found on the site.

The front page is what the README has before its first section; its sections are the page `install`. The pages of
`docs/` lie beside it, the READMEs of packages are in `packages/`, and a source file that a page links to is a page in
`source/`.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**/*.md", "rlcore_*/README.md", "plugins/**/README.md")
NAMED = {
    "README.md": "install",
    "CONTRIBUTING.md": "contributing",
    "CHANGELOG.md": "changelog",
    "docs/index.md": "contents",
    "plugins/README.md": "packages/index",
    "rlcore": "api/index",
}


def pages() -> list[Path]:
    """Return the Markdown pages of the repository, relative to its root."""
    return sorted({page.relative_to(ROOT) for place in PLACES for page in ROOT.glob(place)})


def docname(path: Path) -> str:
    """Return the address of a file or folder on the site, without its extension."""
    if str(path) in NAMED:
        return NAMED[str(path)]
    if (ROOT / path / "README.md").exists():
        path /= "README.md"
    if path.name == "README.md":
        return f"packages/{path.parent.name}"
    if path.suffix == ".md" and path.parts[0] == "docs":
        return str(Path(*path.parts[1:]).with_suffix(""))
    return f"source/{path}"


def resolve(target: str, page: Path) -> Path:
    """Return the path that a page's relative link leads to, relative to the repository's root."""
    return Path(os.path.normpath(page.parent / target))
