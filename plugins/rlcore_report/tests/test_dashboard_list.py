"""Tests of the list of a dashboard in headless Chromium: what is sent, and how many rows are drawn."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from report_runs import make_run

from rlcore_report.local_server import ReportServer

pytestmark = pytest.mark.slow  # one browser for all
Open = Callable[[str], Any]


def test_a_long_list_is_there_at_once_and_drawn_as_far_as_it_is_in_sight(
    browser: Any, serve: Callable[..., ReportServer], tmp_path: Path
) -> None:
    """The first request does not wait for the clock of later ones, which stands still here."""
    first = make_run(tmp_path / "runs" / "run-000")
    for i in range(1, 320):
        shutil.copytree(first, first.with_name(f"run-{i:03}"))
    server = serve([], roots=[tmp_path / "runs"])
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    try:
        page.clock.install()
        page.clock.pause_at("2030-01-01")
        page.goto(server.url)
        rows = page.locator("td.run")
        rows.first.wait_for()
        assert page.inner_text("#shown") == "320 runs"
        assert rows.count() == 100
        page.get_by_text("220 more below").scroll_into_view_if_needed()
        page.locator("td.run >> nth=199").wait_for()
        assert rows.count() == 200
        page.fill("#list", "run-31[0-9]")
        page.locator("td.run >> nth=10").wait_for(state="detached")
        assert sorted(rows.locator("a").all_inner_texts()) == [f"run-31{i}" for i in range(10)]
        page.fill("#list", "")
        page.emulate_media(media="print")
        page.locator("td.run >> nth=319").wait_for()
    finally:
        page.close()


def test_a_run_whose_length_is_not_known_has_its_step_and_no_bar(
    open_page: Open, serve: Callable[..., ReportServer], tmp_path: Path
) -> None:
    make_run(tmp_path / "runs" / "by-epochs", steps=4, run={"steps": None, "epochs": 2})
    make_run(tmp_path / "runs" / "by-steps", steps=4)
    page = open_page(serve([], roots=[tmp_path / "runs"]).url).page
    page.locator("td.run >> nth=1").wait_for()
    cells = dict(zip(page.locator("td.run").all_inner_texts(), page.locator("td.progress").all(), strict=True))
    assert {name: cell.inner_text().strip() for name, cell in cells.items()} == {
        "by-epochs": "step 4",
        "by-steps": "4/4",
    }
    assert {name: cell.locator("progress").count() for name, cell in cells.items()} == {"by-epochs": 0, "by-steps": 1}


def test_a_poll_of_a_list_without_news_sends_no_rows_and_draws_none(
    open_page: Open, serve: Callable[..., ReportServer], tmp_path: Path
) -> None:
    first = make_run(tmp_path / "runs" / "run-000")
    for i in range(1, 50):
        shutil.copytree(first, first.with_name(f"run-{i:03}"))
    page = open_page(serve([], roots=[tmp_path / "runs"]).url).page
    page.locator("td.said.bad >> nth=49").wait_for()  # all verdicts are made
    page.evaluate("""() => { window.changed = 0; new MutationObserver((found) => { window.changed += found.length; })
        .observe(document.body, { subtree: true, childList: true, attributes: true, characterData: true }); }""")
    sent = []
    for _ in range(2):
        with page.expect_response("**/runs.json*") as answer:
            pass
        sent.append(answer.value.json())
    assert [sorted(each) for each in sent] == [["now", "same", "stamp"]] * 2
    assert page.evaluate("window.changed") <= 50  # the ages alone, if a minute ended
