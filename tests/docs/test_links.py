"""Tests that the targets of all links in the documentation exist."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md",
    *sorted(ROOT.glob("docs/**/*.md")), *ROOT.glob("rlcore_*/README.md"), *ROOT.glob("plugins/**/README.md"),
]  # fmt: skip
LINK = re.compile(r"\[[^\]\[]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
NAMED = re.compile(
    r"((?:rlcore|rlcore_\w+|plugins|docs|tests)(?:/[\w.-]+)*/[\w-]+\.(?:py|md|yaml|toml))(?:::([\w.]+))?"
)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@functools.cache
def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


@functools.cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub generates them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        words = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number, anchor = 0, words
        while anchor in found:
            number += 1
            anchor = f"{words}-{number}"
        found.add(anchor)
    return found


@functools.cache
def definitions(file: Path) -> set[str]:
    """Return the names of the functions, classes, methods and constants of a module."""
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return names


def unknown_files(package: Path) -> list[str]:
    """Return the modules that a package's docstring names without a folder, and that are not in the package's own."""
    said = ast.get_docstring(ast.parse(package.read_text(encoding="utf-8"))) or ""
    return [name for name in re.findall(r"(?<![\w/.])\w+\.py\b", said) if not (package.parent / name).exists()]


def dangling(page: Path) -> list[str]:
    """Return the links of a page whose file or heading does not exist, and what there is."""
    found = []
    for target in LINK.findall(prose(page)):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            found.append(f"{target}: does not exist")
        elif anchor and anchor not in anchors(file):
            found.append(f"{target}: {file.name} has {sorted(anchors(file))}")
    return found


def test_every_link_in_the_documentation_has_a_target() -> None:
    found = [f"{page.relative_to(ROOT)}: {each}" for page in PAGES for each in dangling(page)]
    assert not found, "\n".join(found)


def test_broken_links_are_detected(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# The top\n\n## Two words\n\n## Two words\n")
    page.write_text(
        "# Here\n[a](other.md) [b](other.md#two-words) [c](other.md#two-words-1) [d](#here) [e](https://x.y/z#q)\n"
        "[f](gone.md) [g](other.md#three-words) [h](#there) [i](other.md#two-words-2)\n```\n[j](code.md)\n```\n"
    )
    assert [each.partition(":")[0] for each in dangling(page)] == [
        "gone.md", "other.md#three-words", "#there", "other.md#two-words-2",
    ]  # fmt: skip


def test_files_and_names_in_the_text_exist() -> None:
    absent = []
    for page in PAGES:
        for path, name in NAMED.findall("\n".join(CODE.findall(prose(page)))):
            file = ROOT / path
            if not file.exists() or (name and name not in definitions(file)):
                absent.append(f"{page.relative_to(ROOT)} names {path}{name and '::'}{name}, which does not exist")
    assert not absent, "\n".join(absent)


def test_files_that_package_docstrings_name_exist() -> None:
    absent = [
        f"{package.relative_to(ROOT)} names {name}"
        for package in (*ROOT.glob("rlcore*/**/__init__.py"), *ROOT.glob("plugins/**/__init__.py"))
        for name in unknown_files(package)
    ]
    assert not absent, "\n".join(absent)


def test_files_that_are_absent_are_detected(tmp_path: Path) -> None:
    package = tmp_path / "__init__.py"
    (tmp_path / "loss.py").touch()
    package.write_text('"""Equations (loss.py, gone.py) and docs/data.md; other/trainer.py is no neighbour."""\n')
    assert unknown_files(package) == ["gone.py"]


def test_every_page_is_in_the_index() -> None:
    for index in ROOT.glob("docs/**/index.md"):
        listed = index.read_text(encoding="utf-8")
        for page in [*index.parent.glob("*.md"), *index.parent.glob("*/index.md")]:
            name = page.relative_to(index.parent).as_posix()
            assert name == "index.md" or f"({name})" in listed, f"{index.relative_to(ROOT)} does not list {name}"


def test_names_that_do_not_exist_are_detected() -> None:
    assert NAMED.findall("see rlcore/ops.py::gae and docs/data.md") == [("rlcore/ops.py", "gae"), ("docs/data.md", "")]
    assert "gae" in definitions(ROOT / "rlcore/ops.py")
    assert "gea" not in definitions(ROOT / "rlcore/ops.py")
    assert "Updater.step" in definitions(ROOT / "rlcore/optim/updater.py")
