"""Test of the code size of an algorithm apart from its mathematics, as stated in the README."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


def test_the_readme_counts_the_lines_of_code() -> None:
    readme = (PACKAGE / "README.md").read_text(encoding="utf-8")
    quoted = {name: int(count) for name, count in re.findall(r"`(\w+)\.py` (\d+)", readme)}
    seen = {path.stem: lines_of_code(path.read_text(encoding="utf-8")) for path in PACKAGE.glob("[a-z]*.py")}
    assert quoted == seen
    assert f"{sum(seen.values()) - seen['loss']} lines" in readme


def lines_of_code(text: str) -> int:
    """Count the lines that are not blank, comments or docstrings."""
    documented = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            documented |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    coded = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            coded |= set(range(token.start[0], token.end[0] + 1))
    return len(coded - documented)
