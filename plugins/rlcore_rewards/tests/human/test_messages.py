"""Tests of what the page tells a person, in headless Chromium: which keys work, what it waits for or has given up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from people import TOKEN, Served, score_item
from tabs import Tab, wait_until

from rlcore_rewards.human.board import Board
from rlcore_rewards.human.judgement import Item
from rlcore_rewards.human.web_page import PageServer, build_app

pytestmark = pytest.mark.slow  # one browser for all


@pytest.mark.parametrize(
    ("scale", "hint", "keys", "score"),
    [
        ((1, 5, 1), "digits score, ← → change, ", ["4"], 4),
        ((0, 10, 1), "0 1 2 3 4 5 6 7 8 9 score, ← → change, also to 10, ", ["9", "ArrowRight"], 10),
        ((0, 2, 0.5), "0 1 2 score, ← → change, also to 0.5 1.5, ", ["1", "ArrowRight"], 1.5),
        ((10, 50, 10), "← → choose a score, ", ["ArrowRight", "ArrowRight"], 20),
        ((0, 100, 1), "← or → goes to the slider, and then moves it, ", ["7", "ArrowRight", "ArrowRight"], 51),
    ],
    ids=lambda given: "-".join(map(str, given)) if isinstance(given, tuple) else "",
)
def test_the_keys_that_are_named_score(
    browser: Any, tmp_path: Path, scale: tuple[float, ...], hint: str, keys: list[str], score: float
) -> None:
    item = Item("score", "p", ["o"], None, scale)
    with Served(tmp_path) as served:
        served.board.ask([item])
        tab = Tab(browser, served.link, "ann")
        tab.shown()
        assert tab.page.inner_text("#keys").startswith(f"Keys: {hint}Enter submits")
        for key in [*keys, "Enter"]:
            tab.page.keyboard.press(key)
        wait_until(lambda: served.board.scores(item) == (score,))
        assert tab.errors == []


def test_the_ranks_beyond_nine_are_reached_as_the_page_says(browser: Any, tmp_path: Path) -> None:
    item = Item("rank", "p", [f"completion {i}" for i in range(10)])
    with Served(tmp_path) as served:
        served.board.ask([item])
        tab = Tab(browser, served.link, "ann")
        tab.shown()
        assert "1–9 rank the marked completion" in tab.page.inner_text("#keys")  # noqa: RUF001  # as it is shown
        assert "← → change its rank, also beyond 9" in tab.page.inner_text("#keys")
        for key in "1234567899":
            tab.page.keyboard.press(key)
        tab.page.keyboard.press("ArrowRight")
        tab.page.keyboard.press("Enter")
        wait_until(lambda: (served.board.scores(item) or [None])[-1] == 0)
        assert tab.errors == []


def test_someone_who_is_alone_sees_that_the_run_waits_for_another_person(browser: Any, tmp_path: Path) -> None:
    item = score_item("x")
    with Served(tmp_path, second_opinion=1) as served:
        ann = Tab(browser, served.link, "ann")
        ann.page.get_by_text("Nothing to judge at the moment").wait_for()
        served.board.ask([item])
        ann.shown()
        ann.score(2)
        ann.page.get_by_text("Waiting for another person: 1 question that you have judged needs").wait_for()
        bob = Tab(browser, served.link, "bob")
        bob.shown()
        bob.score(4)
        wait_until(lambda: served.board.scores(item) == (3,))
        ann.page.get_by_text("Nothing to judge at the moment").wait_for()
        assert [ann.errors, bob.errors] == [[], []]


@pytest.mark.parametrize("is_later", [True, False])
def test_an_answer_whose_question_never_comes_back_is_given_up_and_the_person_is_told(
    browser: Any, tmp_path: Path, is_later: bool
) -> None:
    """After the run has passed its step; while it has not, after an hour."""
    with Served(tmp_path) as served:
        served.board.ask([attrs.evolve(score_item("a"), step=1)])
        tab = Tab(browser, served.link, "ann")
        tab.page.clock.install()
        tab.shown()
        port = int(served.server.address.rsplit(":", 1)[1].strip("/"))
    tab.score(2)
    notice = tab.page.get_by_role("alert")
    wait_until(lambda: "1 answer is kept in this browser" in notice.inner_text())
    board = Board(tmp_path)
    board.ask([attrs.evolve(score_item("b"), step=1 + is_later)])
    server = PageServer(build_app(board, TOKEN), host="127.0.0.1", port=port)
    try:
        if not is_later:
            wait_until(lambda: "has not asked the question of your last answer again" in notice.inner_text())
            assert "answers" in tab.page.evaluate("Object.keys(localStorage).join()")
            tab.page.clock.fast_forward("01:00:06")
        wait_until(lambda: "that answer was given up" in notice.inner_text())
        assert tab.page.evaluate("localStorage.getItem('rlcore-rewards answers')") == "[]"
        assert tab.shown() == "b"  # and the message stays beside the next question
        assert "that answer was given up" in notice.inner_text()
    finally:
        server.close()
