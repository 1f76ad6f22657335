"""Tests of the page in headless Chromium; `RLCORE_SCREENSHOTS=docs/images` also writes the pictures of the README."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from people import Served, score_item

from rlcore_human.board import Board
from rlcore_human.journal import read_judgements
from rlcore_human.judgement import Item
from rlcore_human.page_server import PageServer
from rlcore_human.web_page import build_app

RANKED = Item("rank", "", ["It is blue because of <b>Rayleigh</b> scattering.", "Because it is.", "Nobody knows."], [
    {"role": "system", "content": "Answer in one sentence."}, {"role": "user", "content": "Why is the sky blue?"},
])  # fmt: skip


class Tab:
    """A tab of a person; every error of its console is kept."""

    def __init__(self, browser: Any, link: str, who: str) -> None:
        self.context = browser.new_context(viewport={"width": 900, "height": 640})
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.page.on("console", lambda line: self.errors.append(line.text) if line.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.requests: list[str] = []
        self.page.goto(link)
        self.enter(who)

    def enter(self, who: str) -> None:
        self.page.get_by_label("Your name").fill(who)
        self.page.get_by_text("Start").click()

    def shown(self) -> str:
        self.page.wait_for_selector("#item:not([hidden])")
        return str(self.page.locator("#outputs .text").first.inner_text())

    def score(self, score: int) -> None:
        self.page.get_by_role("button", name=str(score), exact=True).click()
        self.page.get_by_text("Submit").click()

    def picture(self, name: str) -> None:
        if folder := os.environ.get("RLCORE_SCREENSHOTS"):
            self.page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.slow
def test_two_people_at_once_judge_everything_once(browser: Any, tmp_path: Path) -> None:
    items = [score_item(f"completion {i}") for i in range(6)]
    with Served(tmp_path) as served:
        served.board.ask(items[:4])
        tabs = [Tab(browser, served.link, who) for who in ("ann", "bob")]
        for left in (4, 2):
            first, second = (tab.shown() for tab in tabs)
            assert first != second
            for tab, text in zip(tabs, (first, second), strict=True):
                tab.score(1 + int(text[-1]) % 5)
            wait_until(lambda left=left: served.board.counts["judged"] == 6 - left)
        served.board.ask(items[4:])  # asked while the pages are idle
        assert {tab.shown() for tab in tabs} == {"completion 4", "completion 5"}
        late = Tab(browser, served.link, "cy")  # opened in the middle: all are taken
        late.page.wait_for_selector("#idle:not([hidden])")
        left = tabs[0].shown()
        tabs[0].page.close(run_before_unload=False)
        assert late.shown() == left  # the closed tab's question returned
        for tab in (late, tabs[1]):
            tab.score(1 + int(tab.shown()[-1]) % 5)
        wait_until(lambda: served.board.counts["judged"] == 6)
        assert [tab.errors for tab in (*tabs, late)] == [[], [], []]
        assert all(url.startswith((served.server.address, "data:")) for url in late.requests)
    found = read_judgements(tmp_path)
    assert [each.value for each in sorted(found, key=lambda each: each.item.outputs)] == [1, 2, 3, 4, 5, 1]
    assert {each.who for each in found} == {"ann", "bob", "cy"}


@pytest.mark.slow
def test_completions_are_shown_and_never_run(browser: Any, tmp_path: Path) -> None:
    text = (
        "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>\x1b[31m\u202e\x00end\ud800"
    )
    with Served(tmp_path) as served:
        served.board.ask([score_item(text, prompt="<b>bold</b>\nnew line")])
        tab = Tab(browser, served.link, "ann")
        assert tab.shown() == text.translate({0x1B: "\\x1b", 0x202E: "\\u202e", 0: "\\x00", 0xD800: "\\ud800"})
        assert tab.page.locator("#turns .text").inner_text() == "<b>bold</b>\nnew line"
        assert tab.page.locator("main img, main script, main b").count() == 0
        assert tab.page.title() == "Judge completions"
        tab.picture("human-score")
        assert tab.errors == []


@pytest.mark.slow
def test_submitting_needs_every_rank_and_a_moved_slider(browser: Any, tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        served.board.ask([RANKED])
        tab = Tab(browser, served.link, "ann")
        tab.shown()
        for card, rank in enumerate((1, 2, 2)):
            assert tab.page.locator("#submit").is_disabled()
            tab.page.locator(".card").nth(card).get_by_role("button", name=str(rank), exact=True).click()
        tab.picture("human-rank")
        tab.page.get_by_text("Submit").click()
        wait_until(lambda: served.board.scores(RANKED) == (1, 0.25, 0.25))
        slider = Item("score", "p", ["o"], None, (0, 1, 0))
        served.board.ask([slider])
        tab.page.wait_for_selector("input[type=range]")
        assert tab.page.locator("#submit").is_disabled()
        tab.page.get_by_label("Score").fill("0.25")
        tab.page.get_by_text("Submit").click()
        wait_until(lambda: served.board.scores(slider) == (0.25,))
        skipped = score_item("nonsense")
        served.board.ask([skipped])
        tab.page.get_by_text("Cannot judge").click()
        wait_until(lambda: served.board.scores(skipped) == (None,))
        assert tab.errors == []


@pytest.mark.slow
def test_a_judgement_that_gets_no_reply_is_sent_again_and_kept_once(browser: Any, tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        served.board.ask([score_item("a"), score_item("b")])
        tab = Tab(browser, served.link, "ann")
        first = tab.shown()
        sent = []

        def lose_reply(route: Any) -> None:
            sent.append(route.request.post_data_json["id"])
            if len(sent) == 1:
                route.fetch()  # it arrives, and the reply is lost
                route.abort()
            else:
                route.continue_()

        tab.page.route("**/api/judge", lose_reply)
        tab.score(3)
        wait_until(lambda: tab.page.locator("#outputs .text").inner_text() != first)
        assert len(sent) == 2
        assert len(set(sent)) == 1
    assert len(read_judgements(tmp_path)) == 1


@pytest.mark.slow
def test_an_open_page_goes_on_with_the_new_link_after_a_restart_at_the_same_address(
    browser: Any, tmp_path: Path
) -> None:
    with Served(tmp_path) as served:
        served.board.ask([score_item("a")])
        tab = Tab(browser, served.link, "ann")
        tab.shown()
        port = int(served.server.address.rsplit(":", 1)[1].strip("/"))
    board = Board(tmp_path)
    board.ask([score_item("a")])
    server = PageServer(build_app(board, "new-token"), host="127.0.0.1", port=port)
    try:
        tab.score(2)
        notice = tab.page.get_by_role("alert")
        wait_until(lambda: "open the one that the run has printed" in notice.inner_text())
        assert board.scores(score_item("a")) is None
        tab.page.goto(f"{server.address}#new-token")
        tab.enter("ann")
        tab.shown()
        tab.score(5)
        wait_until(lambda: board.scores(score_item("a")) == (5,))
    finally:
        server.close()


@pytest.mark.slow
def test_a_link_without_its_token_shows_nothing(browser: Any, tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        page = browser.new_page()
        page.goto(served.server.address)
        assert "not complete" in page.get_by_role("alert").inner_text()
        assert page.locator("#login").is_hidden()
