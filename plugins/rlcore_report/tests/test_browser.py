"""Tests of the report in headless Chromium, which also write the pictures of the docs if RLCORE_SCREENSHOTS is set.

    python plugins/rlcore_report/tests/pictured_runs.py .
    export RLCORE_SCREENSHOTS=docs/images RLCORE_PICTURED_RUNS=runs
    python -m pytest -m "slow or not slow" -k four_views plugins/rlcore_report/tests

The first command trains the runs of the pictures.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser import four_views, picture
from report_runs import HOSTILE, address_of, make_run, pictured_runs, write_lines

from rlcore.checkpoints.run_folder import RunDir
from rlcore.safe_text import visible
from rlcore_report.metric_groups import MAX_POINTS

Open = Callable[[str], Any]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
"""A PNG of one red pixel."""


@pytest.mark.slow
def test_it_shows_the_answer_charts_verdicts_samples_and_options_and_fetches_nothing(
    open_page: Open, tmp_path: Path
) -> None:
    opened = open_page(address_of([make_run(tmp_path / "walks")], tmp_path / "page.html"))
    page = opened.page
    page.wait_for_selector(".chart canvas")
    card = page.locator(".answer-card").inner_text()
    assert "eval/reward/mean" in card
    assert "0.1 → 40.1" in card  # the rewards of three prompts, at steps 0 and 40
    assert "+40.00 ± 0.00 over 3 rows" in card
    assert "Entropy collapsed" in page.locator(".answer-card .said.bad").inner_text()
    assert "20 s in steps · 18 k tokens" in card  # 40 steps of .5 s with 900 tokens a second
    large = page.locator(".charts.large .chart")
    assert [chart.get_attribute("data-metric") for chart in large.all()] == [
        "reward/mean", "rft/kept_fraction", "policy/ratio_mean",
    ]  # fmt: skip
    assert page.locator(".group .chart").count() == 0  # all others are folded
    page.get_by_role("button", name="Entropy").click()
    assert page.locator(".group .chart").get_attribute("data-metric") == "policy/entropy"
    assert page.locator(".verdict").count() == 1
    page.check("#passed")
    assert page.locator(".verdict.good").count() > 5
    assert page.locator("#texts .card").count() == 3
    assert page.locator("#options tr.changed code").first.inner_text() == "trainer.name"
    assert opened.problems == []
    assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []


@pytest.mark.slow
def test_a_report_opens_in_four_views(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = address_of([pictured_runs(tmp_path, monkeypatch) / "randomwalks-ppo"], tmp_path / "page.html")
    for number, opened in enumerate(four_views(browser, address, ready=".chart canvas", name="report")):
        if number == 0:
            picture(opened.page, "report")
            opened.page.locator("#texts").evaluate("each => each.closest('section').scrollIntoView()")
            picture(opened.page, "report-completions")
        opened.page.check("#passed")  # unfold what can be unfolded
        folded = opened.page.locator(".group button[aria-expanded='false']")
        while folded.count():
            folded.first.click()


@pytest.mark.nightly
def test_a_comparison_of_runs_opens_in_four_views(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = sorted(pictured_runs(tmp_path, monkeypatch).glob("lr-*"))
    address = address_of(runs, tmp_path / "page.html")
    for number, opened in enumerate(four_views(browser, address, ready=".chart", name="comparison")):
        page = opened.page
        assert page.locator(".answer-card").count() == 6
        page.locator(".chart").first.scroll_into_view_if_needed()
        page.wait_for_selector(".chart canvas")
        assert page.locator(".chart .legend").first.inner_text().count("(3 seeds)") >= 2
        if number == 0:
            page.set_viewport_size({"width": 1400, "height": 1240})
            page.evaluate("scrollTo(0, 0)")
            picture(page, "report-comparison")


@pytest.mark.slow
def test_an_image_that_a_prompt_names_is_shown_beside_it(open_page: Open, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "walks")
    names = ["4f0c21a9", "5f0c21a9"]  # of the second there is no copy
    prompt = "".join(f"<image:{name}>" for name in names) + "what colour ?"
    write_lines(folder / "completions.jsonl", [{"step": 0, "prompt": prompt, "output": "red"}])
    (folder / "thumbnails").mkdir()
    pixel = base64.b64decode(PIXEL)
    (folder / "thumbnails" / f"{names[0]}.png").write_bytes(pixel)
    opened = open_page(address_of([folder], tmp_path / "page.html"))
    images = opened.page.locator("#texts .card .prompt img")
    images.first.wait_for()
    assert [image.get_attribute("alt") for image in images.all()] == [f"image {names[0]}"]
    assert images.first.get_attribute("src") == f"data:image/png;base64,{PIXEL}"
    assert opened.problems == []


@pytest.mark.slow
@pytest.mark.parametrize(("lr", "count"), [(1e-3, 1), (0.0, 2)])
def test_the_first_of_several_problems_is_called_the_likely_cause(
    open_page: Open, tmp_path: Path, lr: float, count: int
) -> None:
    folder = make_run(tmp_path / "walks", steps=8)
    write_lines(RunDir(folder).metrics, [
        {"step": step, "reward/mean": 0.0, "reward/std": 0.0, "lr": lr} for step in range(1, 9)
    ])  # fmt: skip
    page = open_page(address_of([folder], tmp_path / "page.html")).page
    page.locator(".verdict").first.wait_for()
    assert page.locator(".verdict .level").all_inner_texts() == [
        "✗ The reward is constant", "✗ Learning rate is 0",
    ][:count]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("metric", "label"), [("lr", ["show the check that passed"]), ("unknown", [])])
def test_checks_that_passed_are_offered_if_there_are_any(
    open_page: Open, tmp_path: Path, metric: str, label: list[str]
) -> None:
    run = make_run(tmp_path / "walks", steps=20)
    write_lines(RunDir(run).metrics, [{"step": step, metric: 0.1} for step in range(1, 21)])
    RunDir(run).rollouts.unlink()
    page = open_page(address_of([run], tmp_path / "page.html")).page
    page.locator("#health h2").wait_for()
    assert page.locator("#health label").all_inner_texts() == label


@pytest.mark.slow
def test_filters_choose_curves_and_samples(open_page: Open, tmp_path: Path) -> None:
    opened = open_page(address_of([make_run(tmp_path / "walks")], tmp_path / "page.html"))
    page = opened.page
    page.fill("#metric", "^KL/")
    assert [chart.get_attribute("data-metric") for chart in page.locator(".chart").all()] == ["kl/mean"]
    cards = page.locator("#texts .card")
    assert [text.inner_text() for text in cards.first.locator(".output").all()] == [
        "answer 0 of step 0", "answer 0 of step 40",
    ]  # fmt: skip
    assert cards.first.locator(".prompt .message .text").inner_text() == "Name a colour."  # and not the template
    page.fill("#search", "RIVER")
    assert cards.count() == 1
    page.fill("#search", "")
    page.check("#cut")
    assert cards.count() == 1
    page.uncheck("#cut")
    page.select_option("#sort", "best")
    assert "answer 2" in cards.first.inner_text()
    page.select_option("#step", "20")
    assert "answer 2 of step 20" in cards.first.inner_text()
    page.select_option("#source", "rollouts")
    page.select_option("#step", "40")
    assert cards.first.locator(".answer").count() == 4
    assert "advantage 1" in cards.first.inner_text()
    page.fill("#option", "trainer")
    assert opened.problems == []


@pytest.mark.slow
def test_runs_are_overlaid_and_seeds_are_one_band(
    open_page: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [
        make_run(Path(f"runs/{name}-{seed}"), level=level + seed / 10, run={"seed": seed}, gen={"temperature": heat})
        for name, level, heat in (("base", 1.0, 1.0), ("hot", 2.0, 1.5)) for seed in (0, 1, 2)
    ]  # fmt: skip
    opened = open_page(address_of(runs, tmp_path / "page.html"))
    page = opened.page
    differing = page.locator("#comparison table").first.inner_text()
    assert "gen.temperature" in differing
    assert "run.seed" in differing
    paired = (
        page.locator("#comparison table").nth(1).locator("tr", has_text="3 seeds").filter(has_text="reward/mean").first
    )
    assert "higher" in paired.inner_text()
    page.fill("#metric", "reward/mean")
    page.locator("#curves").scroll_into_view_if_needed()
    page.wait_for_selector(".chart canvas")
    legend = page.locator(".chart .legend").inner_text()
    assert "base (3 seeds), training" in legend
    assert "hot (3 seeds), training" in legend
    assert opened.problems == []


@pytest.mark.slow
def test_texts_of_a_run_are_shown_and_never_run(open_page: Open, tmp_path: Path) -> None:
    run = make_run(tmp_path / "hostile", data={"system_prompt": HOSTILE})
    row = {"step": 1, "prompt": HOSTILE, "output": HOSTILE, "reward": 1.0, HOSTILE: 2.0, "columns": {HOSTILE: HOSTILE}}
    messages = [{"role": HOSTILE, "content": [{"type": "text", "text": HOSTILE}]}]
    write_lines(RunDir(run).completions, [row, {**row, "messages": messages}])
    write_lines(RunDir(run).metrics, [{"step": 1, HOSTILE: 1.0, f"loss/{HOSTILE}": None}])
    opened = open_page(address_of([run], tmp_path / "page.html"))
    page = opened.page
    page.wait_for_selector(".chart canvas")
    assert page.locator("#texts .output").first.inner_text() == visible(HOSTILE)
    assert page.evaluate("window.ran") is None
    assert page.locator("img").count() == 0
    assert opened.problems == []


def test_a_page_of_ten_thousand_steps_draws_no_more_points_than_a_screen_has_columns(
    open_page: Open, tmp_path: Path
) -> None:
    file = tmp_path / "page.html"
    opened = open_page(address_of([make_run(tmp_path / "long", steps=10_000)], file))
    opened.page.wait_for_selector(".chart canvas")
    curves = opened.page.evaluate("""
        JSON.parse(document.getElementById("data").textContent)
            .groups.flatMap(group => group.charts).flatMap(chart => chart.curves).map(curve => curve.steps.length)
    """)
    assert curves
    assert max(curves) <= MAX_POINTS
    assert opened.problems == []
