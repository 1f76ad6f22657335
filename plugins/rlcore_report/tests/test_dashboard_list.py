"""Tests of the list of a dashboard in headless Chromium: what is sent, and how many rows are drawn."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser import watch
from report_runs import address_of, make_run, write_lines

from rlcore.checkpoints.run_folder import RunDir
from rlcore_report.run_list import ReportServer

pytestmark = pytest.mark.slow  # one browser for all
Open = Callable[[str], Any]


def test_a_thousand_runs_are_there_with_one_request_and_drawn_as_far_as_they_are_in_sight(
    browser: Any, serve: Callable[..., ReportServer], tmp_path: Path
) -> None:
    """The first request does not wait for the clock of later ones, which stands still here."""
    first = make_run(tmp_path / "runs" / "run-000", steps=8)
    for i in range(1, 1000):
        shutil.copytree(first, first.with_name(f"run-{i:03}"))
    server = serve([], roots=[tmp_path / "runs"])
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    try:
        page.clock.install()
        page.clock.pause_at("2030-01-01")
        opened = watch(page)
        page.goto(server.url)
        rows = page.locator("td.run")
        rows.first.wait_for()
        assert page.inner_text("#shown") == "1000 runs"
        assert rows.count() == 100
        assert [url.removeprefix(server.url) for url in opened.requests] == ["", "runs.json?stamp="]
        page.get_by_text("900 more below").scroll_into_view_if_needed()
        page.locator("td.run >> nth=199").wait_for()
        assert rows.count() == 200
        page.fill("#list", "run-99[0-9]")
        page.locator("td.run >> nth=10").wait_for(state="detached")
        assert sorted(rows.locator("a").all_inner_texts()) == [f"run-99{i}" for i in range(10)]
        page.fill("#list", "")
        page.emulate_media(media="print")
        page.locator("td.run >> nth=999").wait_for()
    finally:
        page.close()


def test_a_run_whose_length_is_not_known_has_its_step_and_no_bar(
    open_page: Open, serve: Callable[..., ReportServer], tmp_path: Path
) -> None:
    make_run(tmp_path / "runs" / "by-time", steps=4, run={"steps": None, "time_s": 60})
    make_run(tmp_path / "runs" / "by-epochs", steps=4, run={"steps": None, "epochs": 2})  # it is at its first one's end
    make_run(tmp_path / "runs" / "by-steps", steps=4)
    page = open_page(serve([], roots=[tmp_path / "runs"]).url).page
    page.locator("td.run >> nth=2").wait_for()
    cells = dict(zip(page.locator("td.run").all_inner_texts(), page.locator("td.progress").all(), strict=True))
    assert {name: cell.inner_text().strip() for name, cell in cells.items()} == {
        "by-time": "step 4",
        "by-epochs": "4/8",
        "by-steps": "4/4",
    }
    bars = {name: cell.locator("progress").count() for name, cell in cells.items()}
    assert bars == {"by-time": 0, "by-epochs": 1, "by-steps": 1}


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


def test_more_selected_runs_than_a_page_shows_are_not_compared_and_the_limit_is_named(
    open_page: Open, serve: Callable[..., ReportServer], tmp_path: Path
) -> None:
    first = make_run(tmp_path / "runs" / "run-00", steps=4)
    for i in range(1, 61):
        shutil.copytree(first, first.with_name(f"run-{i:02}"))
    server = serve([], roots=[tmp_path / "runs"])
    picked = "&".join(f"pick=run-{i:02}" for i in range(61))
    page = open_page(f"{server.url}#{picked}").page
    page.locator("#most").wait_for()
    assert page.inner_text("#most") == "a page shows at most 60 runs"
    assert page.locator("#compare").is_disabled()
    page.get_by_label("select run-00", exact=True).uncheck()
    page.locator("#most").wait_for(state="detached")
    assert page.locator("#compare").is_enabled()
    page = open_page(f"{server.url}#{picked.replace('pick', 'run')}").page
    page.get_by_text("the server answers 400: a page shows at most 60 runs: select fewer").wait_for()


def test_the_metric_of_the_last_value_is_named_unless_it_is_the_reward(
    open_page: Open, serve: Callable[..., ReportServer], tmp_path: Path
) -> None:
    make_run(tmp_path / "runs" / "policy", steps=4)
    model = make_run(tmp_path / "runs" / "model", steps=4)
    config = RunDir(model).config
    config.write_text(config.read_text().replace("# headline ", "# headline eval/reward/accuracy "))
    values = {0: 0.5, 2: 0.75, 4: 0.625}
    rows = [{"step": step, "eval/reward/accuracy": value, "eval/reward/mean": 9.0} for step, value in values.items()]
    write_lines(RunDir(model).metrics, rows)
    page = open_page(serve([], roots=[tmp_path / "runs"]).url).page
    page.locator("td.run >> nth=1").wait_for()
    names = page.locator("td.run").all_inner_texts()
    shown = dict(zip(names, page.locator("td.last").all_inner_texts(), strict=True))
    best = dict(zip(names, page.locator("td.best").all_inner_texts(), strict=True))
    assert (shown["model"], best["model"]) == ("eval/reward/accuracy 0.625", "0.75")
    assert shown["policy"] == "4.1"


def test_the_list_is_filtered_by_any_option_and_by_state_and_shows_options_as_columns(
    open_page: Open, serve: Callable[..., ReportServer], tmp_path: Path
) -> None:
    for name, lr, beta in (("a", 0.05, 0.1), ("b", 5e-4, 0.1), ("c", 5e-4, 0.3)):
        make_run(tmp_path / "runs" / name, steps=4, trainer={"optimizer": {"lr": lr}, "beta": beta})
    RunDir(tmp_path / "runs" / "c").end.unlink()
    page = open_page(serve([], roots=[tmp_path / "runs"]).url).page
    page.locator("td.run >> nth=2").wait_for()
    names = page.locator("td.run a")

    def shown(typed: str) -> list[str]:
        page.fill("#list", typed)
        return sorted(names.all_inner_texts())

    assert shown("lr=0.05") == shown("lr=5e-2") == ["a"]
    assert shown("trainer.optimizer.lr<0.01") == ["b", "c"]
    assert shown("lr=0.0005 killed") == shown("trainer.beta>=0.3") == ["c"]
    assert shown("finished") == ["a", "b"]
    assert shown("seed=0") == ["a", "b", "c"]  # equal in all runs
    assert shown("rl=1") == []
    assert page.inner_text("#unknown") == "no run has an option rl"
    shown("")
    page.select_option("#column", "trainer.optimizer.lr")
    assert sorted(page.locator("td.option").all_inner_texts()) == ["0.0005", "0.0005", "0.05"]
    page.get_by_role("button", name="lr", exact=True).click()
    assert names.all_inner_texts()[0] == "a"
    assert "column=trainer.optimizer.lr" in page.url


def test_a_comparison_shows_the_main_metric_and_folds_the_others(open_page: Open, tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"run-{i}", steps=8, level=1.0 + i, run={"seed": i}) for i in range(2)]
    for run, lr in zip(runs, (1e-3, 1e-4), strict=True):
        config = RunDir(run).config
        config.write_text(config.read_text().replace("name: ppo", f"name: ppo\n  lr: {lr}"))
    page = open_page(address_of(runs, tmp_path / "page.html")).page
    page.locator("#comparison").wait_for()
    rows = page.locator("#comparison > .wide[aria-label=ends] tbody tr")
    assert [row.split("\t")[0] for row in rows.all_inner_texts()] == ["eval/reward/mean"]
    assert page.locator("#comparison details.others").count() == 2
    assert not page.locator("#comparison details.others").first.get_attribute("open")
