"""Tests of the tables of pages in headless Chromium, on a wide screen and on a phone, and of lines of many runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from report_runs import address_of, make_run

from rlcore_report.run_list import MAX_RUNS, ReportServer

pytestmark = pytest.mark.slow  # one browser for all
Open = Callable[[str], Any]
BROKEN_WORDS = r"""() => {
  const broken = [];
  for (const cell of document.querySelectorAll(".wide td")) {
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) for (const word of texts.currentNode.data.matchAll(/\w+/g)) {
      const range = document.createRange();
      range.setStart(texts.currentNode, word.index);
      range.setEnd(texts.currentNode, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(each => each.top)).size > 1) broken.push(word[0]);
    }
  }
  return broken;
}"""
"""The words in cells of tables that lie on more than one line."""


@pytest.mark.parametrize("width", [1400, 390])
def test_no_word_of_a_table_is_broken(open_page: Open, tmp_path: Path, width: int) -> None:
    runs = [
        make_run(
            tmp_path / f"a-run-with-a-name-{i}", level=1.0 + i, run={"seed": i},
            trainer={"optimizer": {"scheduler": "constant"[: 8 - i]}},
        ) for i in range(6)
    ]  # fmt: skip
    page = open_page(address_of(runs, tmp_path / "page.html")).page
    page.set_viewport_size({"width": width, "height": 900})
    assert page.locator(".wide td").count() > 100
    assert page.evaluate(BROKEN_WORDS) == []


def test_on_a_phone_each_row_repeats_the_heads_of_its_columns_and_nothing_is_scrolled_sideways(
    open_page: Open, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "walks", gen={"top_k": 7})
    page = open_page(address_of([run], tmp_path / "page.html")).page
    page.set_viewport_size({"width": 390, "height": 800})
    cells = page.locator("#options tr", has_text="gen.top_k").locator("td").all()
    read = "each => getComputedStyle(each, '::before').content.replaceAll('\"', '') + each.innerText"
    assert [cell.evaluate(read) for cell in cells][:3] == ["nonegen.top_k", "value 7", "default 0"]
    assert page.locator("#options thead").is_hidden()
    tables = "[...document.querySelectorAll('.wide')].map(each => each.scrollWidth - each.clientWidth)"
    assert max(page.evaluate(tables)) <= 0


def test_a_list_on_a_phone_is_put_in_another_order(
    open_page: Open, serve: Callable[..., ReportServer], tmp_path: Path
) -> None:
    for name, level in (("b", 1.0), ("c", 3.0), ("a", 2.0)):
        make_run(tmp_path / "runs" / name, steps=4, level=level)
    page = open_page(serve([], roots=[tmp_path / "runs"]).url).page
    page.set_viewport_size({"width": 390, "height": 800})
    page.locator("td.run >> nth=2").wait_for()
    for head, names in (("run", ["a", "b", "c"]), ("best", ["c", "a", "b"])):
        page.get_by_role("button", name=head, exact=True).click()
        assert page.locator("td.run a").all_inner_texts() == names


def test_as_many_runs_as_a_page_shows_have_lines_that_differ(open_page: Open, tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"run-{i:02}", steps=2, gen={"top_k": i}) for i in range(MAX_RUNS)]
    page = open_page(address_of(runs, tmp_path / "page.html")).page
    lines = page.locator(".toggles .sample line").all()
    drawn = {(line.get_attribute("style"), line.get_attribute("stroke-dasharray")) for line in lines}
    assert len(drawn) == MAX_RUNS == 60


@pytest.mark.parametrize(("value", "shown"), [
    (0.0, "0"), (0.01234567, "0.01235"), (1e-4, "0.0001"), (9.375e-5, "9.375e-5"), (-6.6667e-6, "-6.667e-6"),
    (12345.6, "12350"),
])  # fmt: skip
def test_a_number_has_four_digits_and_a_small_one_its_power_of_ten(
    open_page: Open, tmp_path: Path, value: float, shown: str
) -> None:
    page = open_page(address_of([make_run(tmp_path / "walks", steps=2)], tmp_path / "page.html")).page
    assert page.evaluate("value => number(value)", value) == shown
