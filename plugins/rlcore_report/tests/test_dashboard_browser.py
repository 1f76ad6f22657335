"""Tests of the dashboard in headless Chromium; one of them writes the picture of the docs, as in test_browser.py."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser import assert_fits, four_views, picture
from PIL import Image
from report_runs import HOSTILE, address_of, make_run, pictured_runs, write_lines

from rlcore.checkpoints.run_folder import RunDir
from rlcore_report.run_list import ReportServer

pytestmark = pytest.mark.slow  # one browser for all
Open = Callable[[str], Any]
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000000a49444154789c6360000000020001486fa6710000000049454e44ae426082"
)


def hover(page: Any, metric: str, share: float) -> list[str]:
    """Put the pointer over a chart, at a share of its width, and return what the legend shows of each curve."""
    over = page.locator(f".chart[data-metric='{metric}'] .u-over").first
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    page.mouse.move(box["x"] + share * (box["width"] - 1), box["y"] + box["height"] / 2)
    return list(page.locator(f".chart[data-metric='{metric}']").first.locator(".legend b").all_inner_texts())


def test_the_list_opens_compares_sorts_and_filters_and_the_address_has_the_view(
    open_page: Open, serve: Callable[..., ReportServer], tmp_path: Path
) -> None:
    for i in range(3):
        make_run(tmp_path / "runs" / f"walks-{i}", steps=20 + i, level=1.0 + i)
    server = serve([], roots=[tmp_path / "runs"])
    opened = open_page(server.url)
    page = opened.page
    page.set_viewport_size({"width": 1400, "height": 900})
    page.locator("table.list tbody tr").first.wait_for()
    page.locator("td.said.pending").first.wait_for(state="detached", timeout=300_000)
    names = page.locator("td.run a").all_inner_texts()
    page.get_by_role("button", name="run", exact=True).click()
    assert page.locator("td.run a").all_inner_texts() == sorted(names)
    assert "order=name" in page.url
    page.fill("#list", f"^{names[0]}$")
    assert page.locator("td.run a").all_inner_texts() == [names[0]]
    page.fill("#list", "(")  # no regular expression yet: a person is typing
    assert page.locator("#list").get_attribute("aria-invalid") == "true"
    page.fill("#list", "")
    page.get_by_label(f"select {names[0]}", exact=True).check()
    page.get_by_label(f"select {names[1]}", exact=True).check()
    page.click("#compare")
    page.wait_for_selector(".chart canvas")
    assert page.locator(".answer-card").count() == 2
    page.check("#log")
    page.reload()
    page.wait_for_selector(".chart canvas")
    assert page.is_checked("#log")
    page.go_back()
    page.locator("table.list").wait_for()
    page.locator("td.run a").first.click()
    page.locator(".answer-card").wait_for()
    assert page.locator(".answer-card").count() == 1
    assert opened.problems == []
    assert all(url.startswith(server.url) for url in opened.requests)


def test_an_update_keeps_focus_keystrokes_zoom_scroll_and_what_is_open(
    open_page: Open, serve: Callable[..., ReportServer], tmp_path: Path
) -> None:
    run = make_run(tmp_path / "going", steps=100)
    opened = open_page(serve([run]).url)
    page = opened.page
    page.wait_for_selector(".chart canvas")
    over = page.locator(".charts.large .u-over").first
    box = over.bounding_box()
    page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 60, steps=4)
    page.mouse.up()
    page.locator("#unzoom").wait_for()
    zoom = re.findall(r"zoom=([\d.]+)", page.url)
    page.get_by_role("button", name="Entropy").click()
    page.locator("#search").click()
    page.keyboard.type("answ")
    page.evaluate("window.scrollBy(0, 60)")
    before = page.evaluate("[scrollY, document.activeElement.id]")
    with RunDir(run).metrics.open("a") as file:
        file.write('{"step": 101, "reward/mean": 1.0, "policy/entropy": 1.0}\n')
    page.keyboard.type("er 1")
    page.get_by_text("step 101 of 100").wait_for(state="attached", timeout=300_000)
    page.keyboard.type(" of")
    assert page.input_value("#search") == "answer 1 of"
    assert page.evaluate("[scrollY, document.activeElement.id]") == before
    assert re.findall(r"zoom=([\d.]+)", page.url) == zoom
    assert len(zoom) == 2
    assert page.locator(".group .chart").count() == 1
    assert page.locator("#texts .card").count() == 1
    assert opened.problems == []


def test_a_legend_shows_values_of_their_own_step_or_nothing(open_page: Open, tmp_path: Path) -> None:
    short, long = make_run(tmp_path / "short", steps=14), make_run(tmp_path / "long", steps=50)
    for run, last in ((short, 14), (long, 50)):
        write_lines(RunDir(run).metrics, [{"step": step, "reward/mean": step / 2} for step in range(1, last + 1)])
    opened = open_page(address_of([short, long], tmp_path / "page.html"))
    page = opened.page
    page.wait_for_selector(".chart canvas")
    assert hover(page, "reward/mean", 0) == ["0.5", "0.5"]
    assert hover(page, "reward/mean", 24 / 49) == ["", "12.5"]
    assert page.locator(".chart .place").first.inner_text() == "step 25"
    assert hover(page, "reward/mean", 1) == ["", "25"]
    page.uncheck(".toggles label:nth-child(2) input")
    page.wait_for_function("() => document.querySelectorAll('.legend b').length === 1")
    assert hover(page, "reward/mean", 1) == ["7"]  # the axis now ends at step 14
    assert opened.problems == []


def test_charts_are_reached_by_keyboard_told_in_words_enlarged_and_saved(open_page: Open, tmp_path: Path) -> None:
    run = make_run(tmp_path / "walks", steps=5)
    write_lines(RunDir(run).metrics, [
        {"step": step, "reward/mean": step / 2, "time/step_s": 2.0, "perf/tokens_per_s": 10.0} for step in range(1, 6)
    ])  # fmt: skip
    opened = open_page(address_of([run], tmp_path / "page.html"))
    page = opened.page
    page.wait_for_selector(".chart canvas")
    figure = page.locator(".chart").first
    assert figure.get_attribute("aria-label") == (
        "reward/mean. training: from 0.5 at step 1 to 2.5 at step 5, lowest 0.5, highest 2.5."
    )
    figure.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert figure.locator(".legend b").inner_text() == "1"
    page.keyboard.press("f")
    overlay = page.get_by_role("dialog")
    overlay.locator("canvas").wait_for()
    assert overlay.locator(".plot").bounding_box()["width"] > 1150
    assert "full=reward" in page.url
    page.keyboard.press("Escape")
    overlay.wait_for(state="detached")
    assert page.evaluate("document.activeElement.dataset.metric") == "reward/mean"  # the chart that was enlarged
    page.select_option("#x", "tokens")
    with page.expect_download() as saving:
        page.get_by_label("CSV of reward/mean").click()
    rows = list(csv.reader(Path(saving.value.path()).read_text().splitlines()))
    assert rows[0] == ["tokens", "reward/mean, training"]
    assert rows[1:] == [[str(20 * step), f"{step / 2:g}"] for step in range(1, 6)]
    assert opened.problems == []


def test_every_page_opens_in_four_views(browser: Any, serve: Callable[..., ReportServer], tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "runs" / f"a-run-with-a-long-name-{i:02d}", steps=9, gen={"top_k": i}) for i in range(10)
    ]
    (runs[0] / "images").mkdir()
    (runs[0] / "images" / "step-00000010.png").write_bytes(PIXEL)
    server = serve([], roots=[tmp_path / "runs"])
    several = "&".join(f"run={run.name}" for run in runs)
    for opened in four_views(browser, server.url, ready="table.list td.run", name="dashboard"):
        page = opened.page
        for view, shows in {f"#run={runs[0].name}": ".images img", f"#{several}": ".chart canvas"}.items():
            page.goto("about:blank")
            page.goto(server.url + view)
            page.wait_for_selector(shows.replace(" canvas", ""))
            page.locator(shows.replace(" canvas", "")).first.scroll_into_view_if_needed()  # charts are drawn when seen
            page.wait_for_selector(shows)
            assert_fits(page)
        lines = page.locator(".toggles .sample line").all()
        drawn = {(line.get_attribute("style"), line.get_attribute("stroke-dasharray")) for line in lines}
        assert len(drawn) == 10
        page.set_viewport_size({"width": page.viewport_size["width"] - 60, "height": 900})  # charts follow
        page.wait_for_function("() => document.documentElement.scrollWidth <= innerWidth")
        box = page.locator(".chart .plot").first.bounding_box()
        page.wait_for_function("w => Math.abs(document.querySelector('.uplot').clientWidth - w) < 2", arg=box["width"])


@pytest.mark.nightly
def test_the_list_of_the_docs_opens_in_four_views(
    browser: Any, serve: Callable[..., ReportServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve([], roots=[pictured_runs(tmp_path, monkeypatch)])
    for number, opened in enumerate(four_views(browser, server.url, ready="td.run", name="list")):
        opened.page.locator("td.said.pending").first.wait_for(state="detached", timeout=300_000)
        if number == 0:
            picture(opened.page.locator("#page"), "dashboard")


def test_a_printed_page_has_dark_ink_and_the_width_of_the_paper(open_page: Open, tmp_path: Path) -> None:
    opened = open_page(address_of([make_run(tmp_path / "walks")], tmp_path / "page.html"))
    page = opened.page
    page.emulate_media(color_scheme="dark")
    page.wait_for_selector(".chart canvas")
    page.set_viewport_size({"width": 700, "height": 900})
    page.emulate_media(color_scheme="dark", media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("nav").is_hidden()
    assert page.evaluate("document.documentElement.scrollWidth") <= 700
    assert page.pdf().startswith(b"%PDF")
    assert opened.problems == []


def test_grids_of_images_open_large_with_a_caption(open_page: Open, tmp_path: Path) -> None:
    run = make_run(tmp_path / "drawn", steps=4)
    (run / "images").mkdir()
    for step in (0, 10):
        (run / "images" / f"step-{step:08d}.png").write_bytes(PIXEL)
    opened = open_page(address_of([run], tmp_path / "page.html"))
    page = opened.page
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.locator(".images figcaption").all_inner_texts() == ["evaluation at step 0", "evaluation at step 10"]
    page.locator(".images button").first.click()
    large = page.locator(".overlay img")
    large.wait_for()
    assert large.bounding_box()["width"] > 300
    page.keyboard.press("ArrowRight")
    page.locator(".overlay").get_by_text("evaluation at step 10").wait_for()
    page.keyboard.press("Escape")
    large.wait_for(state="detached")
    assert page.evaluate("document.activeElement === document.querySelector('.images button')")
    assert opened.problems == []


def test_a_grid_of_many_columns_keeps_its_height_and_is_scrolled(open_page: Open, tmp_path: Path) -> None:
    """As ddpo writes it: a row for each prompt, here two of 32 images of 8 pixels."""
    run = make_run(tmp_path / "drawn", steps=4)
    (run / "images").mkdir()
    Image.new("RGB", (256, 16)).save(run / "images" / "step-00000004.png")
    opened = open_page(address_of([run], tmp_path / "page.html"))
    page = opened.page
    for width in (1400, 390):
        page.set_viewport_size({"width": width, "height": 800})
        page.locator(".images img.strip").wait_for()
        box = page.locator(".images img").bounding_box()
        assert (box["width"] / box["height"], box["height"]) == (pytest.approx(16, rel=0.05), pytest.approx(96, abs=2))
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        page.locator(".images button").click(position={"x": 20, "y": 20})
        large = page.locator(".overlay img.strip")
        large.wait_for()
        assert large.bounding_box()["height"] == pytest.approx(320, abs=2)
        page.keyboard.press("Escape")
        large.wait_for(state="detached")
    assert opened.problems == []


def test_completions_show_turns_and_text_as_it_looks(open_page: Open, tmp_path: Path) -> None:
    run = make_run(tmp_path / "talks", steps=4)
    text = "שלום עולם\n\tindented\n全角\u3000空白 👩\u200d👧"
    transcript = [
        {"role": "assistant", "content": "[add(a=1,b=2)]", "reward": 0.0}, {"role": "tool", "content": "3"},
        {"role": "assistant", "content": text, "reward": 1.0},
    ]  # fmt: skip
    RunDir(run).completions.unlink()
    write_lines(RunDir(run).rollouts, [{"step": 1, "prompt": "1+2=", "output": "x", "transcript": transcript}])
    opened = open_page(address_of([run], tmp_path / "page.html"))
    turns = opened.page.locator("#texts .turns .message")
    assert [role.inner_text() for role in turns.locator(".role").all()] == ["ASSISTANT (+0)", "TOOL", "ASSISTANT (+1)"]
    last = turns.last.locator(".text")
    assert last.evaluate("each => each.textContent") == text
    style = last.evaluate(
        "each => { const s = getComputedStyle(each); return [s.unicodeBidi, s.tabSize, s.whiteSpace]; }"
    )
    assert style == ["plaintext", "4", "pre-wrap"]
    assert opened.problems == []


def test_a_hostile_run_is_listed_and_opened_as_text(
    open_page: Open, serve: Callable[..., ReportServer], tmp_path: Path
) -> None:
    name = "<img src=x onerror=window.ran=1>"
    run = make_run(tmp_path / "runs" / name, steps=6)
    config = RunDir(run).config.read_text()
    RunDir(run).config.write_text(config.replace("path: tiny", "path: </script><script>window.ran=1</script>"))
    write_lines(RunDir(run).metrics, [{"step": 1, "reward/mean": 1.0, HOSTILE: 2.0}])
    opened = open_page(serve([], roots=[tmp_path / "runs"]).url)
    page = opened.page
    link = page.locator("td.run a")
    link.wait_for()
    assert link.inner_text() == name
    assert "<script>" in page.locator("td.model").inner_text()
    link.click()
    page.locator(".answer-card").wait_for()
    page.fill("#metric", "window")
    page.locator(".group .chart canvas").wait_for()
    hostile = "#full=<img src=x onerror=window.ran=1>&metric=<script>&run=../../etc&zoom=a&zoom=b&hide=<b>&smooth=1e999"
    page.evaluate("hash => { location.hash = hash; }", hostile)
    page.get_by_text("there is no such run").wait_for()
    assert page.evaluate("window.ran") is None
    assert page.locator("img").count() == 0
    assert [problem for problem in opened.problems if "404" not in problem] == []
