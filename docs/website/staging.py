"""Copy the Markdown pages of the repository into the folder that Sphinx reads, with links that hold on the site."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from website.addresses import ROOT, docname, pages, resolve
from website.navigation import front_toctrees, toctrees
from website.subjects import index_entries

FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
README = Path("README.md")
NEXT = """
**Next:** [install and train a first model](README.md), [how a run works](docs/how-a-run-works.md), or
[all pages](docs/index.md).
"""
SECTION = re.compile(r"^##+ (.+)\n", re.MULTILINE)
HEADING = re.compile(r"^# .+\n", re.MULTILINE)
COMMENT = re.compile(r"^<!--.*?-->\n+", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[#)])")
ELSEWHERE = ("http://", "https://", "mailto:")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml"}


def write(folder: Path) -> None:
    """Write every page, every source file that a page links to, and the images."""
    linked: set[Path] = set()
    for page in pages():
        text = COMMENT.sub("", (ROOT / page).read_text(encoding="utf-8"))
        if page == README:
            front, text = _front(text)
            front = _with_site_links(front, page, linked) + front_toctrees()
            (folder / "index.md").write_text(front, encoding="utf-8")
        text = SECTION.sub(_index_of_section(page), text)
        parts = [part if part.startswith("```") else _with_site_links(part, page, linked) for part in FENCE.split(text)]
        _write_page(folder, page, HEADING.sub(_index_after(page), "".join(parts), count=1) + toctrees(page))
    for path in sorted(linked):
        files = sorted((ROOT / path).glob("*.py")) if (ROOT / path).is_dir() else [ROOT / path]
        _write_page(folder, path, _source_page(path, files))
    shutil.copytree(ROOT / "docs/images", folder / "images")


def _front(readme: str) -> tuple[str, str]:
    """Return the front page, what the README has before its first section, and the page of its sections."""
    front, _, rest = readme.partition("\n## ")
    front = front.replace("](#", "](README.md#")
    return f"{front}\n{NEXT}", f"# Install and first run\n\n## {rest}"


def _index_after(page: Path) -> Callable[[re.Match[str]], str]:
    """Return a function that puts the subjects of a page below its heading."""
    return lambda heading: f"{heading[0]}\n{index_entries(page)}"


def _index_of_section(page: Path) -> Callable[[re.Match[str]], str]:
    """Return a function that puts the subjects of a section below its heading."""
    return lambda heading: f"{heading[0]}\n{index_entries(page, heading[1])}"


def _write_page(folder: Path, path: Path, text: str) -> None:
    at = folder / f"{docname(path)}.md"
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_text(text, encoding="utf-8")


def _with_site_links(text: str, page: Path, linked: set[Path]) -> str:
    """Return the text with its relative links as they hold on the site; adds to the linked source files."""
    home = Path(docname(page)).parent

    def moved(match: re.Match[str]) -> str:
        if match[1].startswith(ELSEWHERE):
            return match[1]
        path = resolve(match[1], page)
        if path.is_relative_to("docs/images"):
            return os.path.relpath(path.relative_to("docs"), home)
        name = docname(path)
        if name.startswith("source/") and (ROOT / path).exists():
            linked.add(path)
        return os.path.relpath(f"{name}.md", home)

    return LINK.sub(moved, text)


def _source_page(path: Path, files: list[Path]) -> str:
    """Return the page of a source file, or of the files of a folder."""
    lines = ["---", "orphan: true", "no-search: true", "---", f"# {path}", ""]
    for file in files:
        lines += [f"## {file.name}", ""] if len(files) > 1 else []
        lines += [f"````{LANGUAGES.get(file.suffix, 'text')}", file.read_text(encoding="utf-8").rstrip(), "````", ""]
    return "\n".join(lines)
