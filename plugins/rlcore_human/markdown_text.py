"""Markdown, with code and formulas, as HTML that runs nothing and loads nothing."""

from __future__ import annotations

import functools
import html
import unicodedata
from typing import Any
from xml.etree import ElementTree as ET

import nh3

LONGEST = 50_000
"""Characters of the longest text that is rendered."""
SHOWN_AS_THEY_ARE = frozenset("\n\t\u200c\u200d")
"""Line breaks, tabs, and the joiners that letters and emoji need."""
HIDDEN = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs", "Co"})
"""Unicode categories of characters that could deceive: controls, text directions, lone surrogates, private use."""
TEXT_TAGS = frozenset({
    "blockquote", "br", "code", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s", "strong",
    "table", "tbody", "td", "th", "thead", "tr", "ul",
})  # fmt: skip
FORMULA_TAGS = frozenset({
    "math", "menclose", "merror", "mfenced", "mfrac", "mi", "mmultiscripts", "mn", "mo", "mover", "mprescripts",
    "mroot", "mrow", "ms", "mspace", "msqrt", "mstyle", "msub", "msubsup", "msup", "mtable", "mtd", "mtext", "mtr",
    "munder", "munderover", "none", "semantics",
})  # fmt: skip
OPERATORS = frozenset("\u2061\u2062\u2063\u2064")
"""Invisible operators of formulas, such as that between a function and its argument."""
ATTRIBUTES = {
    "math": {"display"}, "mi": {"mathvariant"}, "mo": {"stretchy", "fence", "separator", "movablelimits", "form"},
    "mtable": {"columnalign"}, "mfrac": {"linethickness"}, "ol": {"start"},
}  # fmt: skip


def render_markdown(text: str) -> str | None:
    r"""Return a text as HTML of the tags above; None if it is too long.

    HTML in the text is shown as text. Links and images stay as they were written, so that nothing can be loaded and no
    link shows another address than its own. Formulas are TeX between `$`, `$$`, `\(` and `\)`, or `\[` and
    `\]`, and become MathML; one that cannot be read, or would hide a part of itself, is shown as its source.
    """
    if len(text) > LONGEST:
        return None
    return nh3.clean(
        _parser().render(_without_hidden(text)), tags={*TEXT_TAGS, *FORMULA_TAGS}, attributes=ATTRIBUTES,
        link_rel=None,
    )  # fmt: skip


def _without_hidden(text: str) -> str:
    """Return a text with its invisible characters as their code points."""
    return "".join(f"\\u{ord(each):04x}" if _is_hidden(each) else each for each in text)


def _is_hidden(character: str) -> bool:
    return character not in SHOWN_AS_THEY_ARE and unicodedata.category(character) in HIDDEN


@functools.cache
def _parser() -> Any:
    from markdown_it import MarkdownIt
    from mdit_py_plugins.dollarmath import dollarmath_plugin
    from mdit_py_plugins.texmath import texmath_plugin

    parser = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
    parser.disable(["link", "image", "autolink", "reference", "entity"])
    parser.add_render_rule("fence", _fence)
    parser.use(texmath_plugin, delimiters="brackets")  # \(...\) and \[...\], shown by the renderer of the next one
    return parser.use(dollarmath_plugin, allow_labels=False, allow_space=False, allow_digits=False, renderer=_formula)


def _fence(_renderer: Any, tokens: Any, index: int, _options: Any, _env: Any) -> str:
    """Return fenced code after the words of its first line, such as its language."""
    info = html.escape(tokens[index].info.strip())
    return f"{f'<p><em>{info}</em></p>' if info else ''}<pre><code>{html.escape(tokens[index].content)}</code></pre>\n"


def _formula(tex: str, options: dict[str, Any]) -> str:
    """Return a formula as MathML, or its source if it cannot be read or would hide or run something."""
    from latex2mathml.converter import convert

    display = "block" if options.get("display_mode") else "inline"
    try:
        shown = str(convert(tex, display=display))
        elements = list(ET.fromstring(shown).iter())  # noqa: S314  written by the library, without a DOCTYPE
    except Exception:  # noqa: BLE001  the library raises errors of many types for TeX that it cannot read
        elements = []
    names = {str(each.tag).rpartition("}")[2] for each in elements}
    has_link = any("href" in each.attrib for each in elements)
    texts = set("".join(each.text or "" for each in elements)) - OPERATORS
    if elements and names <= FORMULA_TAGS and not has_link and not any(map(_is_hidden, texts)):
        return shown
    opening, closing = (r"\[", r"\]") if display == "block" else (r"\(", r"\)")
    return f"<code>{html.escape(opening + tex + closing)}</code>"
