"""Tests of rendered Markdown: it shows all of the text, runs nothing and loads nothing."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from rlcore_rewards.human.web_page import ATTRIBUTES, FORMULA_TAGS, LONGEST, TEXT_TAGS, render_markdown


def test_emphasis_code_tables_and_formulas_are_rendered() -> None:
    html = render_markdown("**b** `c`\n\n```python\nx < 1\n```\n\n|a|b|\n|-|-|\n|1|2|\n\n\\(x^2\\) $y$ $$z$$") or ""
    assert "<strong>b</strong> <code>c</code>" in html
    assert "<p><em>python</em></p><pre><code>x &lt; 1\n</code></pre>" in html
    assert "<td>1</td>\n<td>2</td>" in html
    assert html.count("<math") == 3
    assert "<msup><mi>x</mi><mn>2</mn></msup>" in html


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<script>run()</script>", "&lt;script&gt;run()&lt;/script&gt;"),
        ("<img src=x onerror=run()>", "&lt;img src=x onerror=run()&gt;"),
        ("[here](javascript:run())", "[here](javascript:run())"),
        ("![](http://elsewhere/x.png)", "![](http://elsewhere/x.png)"),
        ("<http://elsewhere>", "&lt;http://elsewhere&gt;"),
        ("&lt;b&gt;", "&amp;lt;b&amp;gt;"),
        (r"$\href{javascript:run()}{x}$", r"<code>\(\href{javascript:run()}{x}\)</code>"),
        (r"$\text{<img src=x onerror=run()>}$", r"<code>\(\text{&lt;img src=x onerror=run()&gt;}\)</code>"),
        (r"$\unicode{x202e}$", r"<code>\(\unicode{x202e}\)</code>"),
        (r"$\phantom{hidden}$", r"<code>\(\phantom{hidden}\)</code>"),
        ("it costs $5 and $6", "it costs $5 and $6"),
        ("a\u202eb\x1b[31m\ud800", r"a\u202eb\u001b[31m\ud800"),
        ("a\tb\u3000c\u200dd", "a\tb\u3000c\u200dd"),
    ],
)
def test_what_could_run_load_or_deceive_is_shown_as_it_was_written(text: str, shown: str) -> None:
    assert render_markdown(text) == f"<p>{shown}</p>\n"


@pytest.mark.parametrize("text", [
    "<b", "</p><script>", "`<b>`", "```<b>\n<script>\n```", "# <a href='x' onclick='y'>", "- [x](y 'z')",
    "|<b>|\n|-|\n|<i>|", "~~a~~\n***\nb", "1) a\n7. b", "<!-- -->", "<?x?>", "[a]: http://b\n[a]",
    r"$\mathchoice$", r"\[\begin{matrix}<x>&</math><script>\end{matrix}\]", r"$\unicode{x202e}$",
    r"$\text{</mtext></math><script>x</script>}$",
])  # fmt: skip
def test_only_the_listed_tags_and_attributes_occur(text: str) -> None:
    html = render_markdown(text)
    assert html is not None
    root = ET.fromstring(f"<root>{html.replace('<br>', '<br/>').replace('<hr>', '<hr/>')}</root>")
    for element in list(root.iter())[1:]:
        assert element.tag in TEXT_TAGS | FORMULA_TAGS
        assert set(element.attrib) <= ATTRIBUTES.get(element.tag, set())
    if "$" not in text and r"\[" not in text:  # TeX has commands, which are not shown
        assert re.findall("[a-z]", text) == re.findall("[a-z]", "".join(root.itertext()))


def test_a_text_that_is_too_long_stays_text() -> None:
    assert render_markdown("a" * LONGEST) is not None
    assert render_markdown("a" * (LONGEST + 1)) is None
