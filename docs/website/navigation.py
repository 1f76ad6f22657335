"""The order of the site's pages: that of the links in `docs/index.md`, under its headings."""

from __future__ import annotations

import re
from pathlib import Path

from website.addresses import ROOT, docname, resolve

PAGE = re.compile(r"\]\(([^)\s#]+\.md)\)")
SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
INDEX = Path("docs/index.md")
PARENTS = (Path("docs/hooks/index.md"), Path("docs/protocols/index.md"), Path("plugins/README.md"))
"""Pages with tables of the pages below them."""
API = ("Reference", "api/index")


def toctrees(page: Path) -> str:
    """Return the directives that tell Sphinx which pages come below a page."""
    if page in PARENTS:
        return _toctree(_linked(page, (ROOT / page).read_text(encoding="utf-8"), below=page.parent))
    return ""


def front_toctrees() -> str:
    """Return the directives of the front page, below which every other page comes."""
    return "".join(_toctree(names, caption=caption) for caption, names in sections().items())


def sections() -> dict[str, list[str]]:
    """Return the addresses of the pages under each heading of the index; of several mentions the first counts."""
    parts = SECTION.split((ROOT / INDEX).read_text(encoding="utf-8"))
    found: dict[str, list[str]] = {}
    for heading, text in zip(parts[1::2], parts[2::2], strict=True):
        before = {name for names in found.values() for name in names}
        found[heading] = [name for name in _linked(INDEX, text) if name not in before]
    found[API[0]].append(API[1])
    found[next(reversed(found))].append(docname(INDEX))
    return found


def _linked(page: Path, text: str, *, below: Path = Path()) -> list[str]:
    targets = dict.fromkeys(resolve(target, page) for target in PAGE.findall(text))
    return [docname(path) for path in targets if path.is_relative_to(below) and path != page]


def _toctree(names: list[str], *, caption: str = "") -> str:
    lines = ["", "```{toctree}", ":hidden:", *([f":caption: {caption}"] if caption else []), ""]
    lines += [f"/{name}" for name in names]
    return "\n".join([*lines, "```", ""])
