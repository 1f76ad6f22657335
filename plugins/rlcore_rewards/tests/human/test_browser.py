"""Tests of the page in headless Chromium; `RLCORE_SCREENSHOTS=docs/images` also writes the pictures of the README."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from browser import VIEWS, assert_in_order, four_views, view_picture
from people import Served, score_item
from tabs import Tab, wait_until

from rlcore_rewards.human.board import Board
from rlcore_rewards.human.config import HumanConfig
from rlcore_rewards.human.human_reward import _question
from rlcore_rewards.human.judgement import Item, read_judgements
from rlcore_rewards.human.web_page import PageServer, build_app

RANKED = Item("rank", "", ["It is blue because of <b>Rayleigh</b> scattering.", "Because it is.", "Nobody knows."], [
    {"role": "system", "content": "Answer in one sentence."}, {"role": "user", "content": "Why is the sky blue?"},
])  # fmt: skip


@pytest.mark.slow
def test_the_page_opens_in_four_views(browser: Any, tmp_path: Path) -> None:
    """The form that asks for a name, a ranking, buttons, a slider, and the page of who has nothing to judge."""
    with Served(tmp_path) as served:
        views = four_views(browser, served.link, ready="#login:not([hidden])", name="human-login")
        for (width, scheme), opened in zip(VIEWS, views, strict=True):
            prompt = f"at {width} px, {scheme}"
            asked = [attrs.evolve(RANKED, prompt=prompt), score_item("a completion", prompt=prompt)]
            served.board.ask([*asked, Item("score", prompt, ["one more"], None, (0, 1, 0))])
            page = opened.page
            page.get_by_label("Your name").fill("ann")
            page.get_by_text("Start").click()
            for number, text in enumerate(("Nobody knows.", "a completion", "one more")):
                page.locator("#outputs").get_by_text(text).wait_for()
                assert_in_order(opened, scheme)
                view_picture(page, f"human-{number}-{width}-{scheme}")
                page.locator("#skip").click()
            page.wait_for_selector("#idle:not([hidden])")


@pytest.mark.nightly
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
        tab.shown()
        tab.page.keyboard.press("t")
        assert tab.page.locator("#outputs .rendered").count() == 1
        assert tab.page.locator("main img, main script, main b").count() == 0
        tab.page.keyboard.press("t")
        assert tab.shown() == text.translate({0x1B: "\\x1b", 0x202E: "\\u202e", 0: "\\x00", 0xD800: "\\ud800"})
        assert tab.page.locator("#turns .text").inner_text() == "<b>bold</b>\nnew line"
        assert tab.page.locator("main img, main script, main b").count() == 0
        assert tab.page.title() == "Judge completions"
        tab.picture("human-score")
        assert tab.errors == []


@pytest.mark.slow
def test_submitting_needs_every_rank_and_a_moved_slider(browser: Any, tmp_path: Path) -> None:
    with Served(tmp_path, question=_question(HumanConfig(mode="rank"))) as served:
        served.board.ask([RANKED])
        tab = Tab(browser, served.link, "ann")
        tab.shown()
        assert "Which completion is best?" in tab.page.locator("main").inner_text()
        for card, rank in enumerate((1, 2, 2)):
            assert tab.page.locator("#submit").is_disabled()
            tab.page.locator(".card").nth(card).get_by_role("button", name=str(rank), exact=True).click()
        tab.picture("human-rank")
        tab.page.locator("#submit").click()
        wait_until(lambda: served.board.scores(RANKED) == (1, 0.25, 0.25))
        slider = Item("score", "p", ["o"], None, (0, 1, 0))
        served.board.ask([slider])
        tab.page.wait_for_selector("input[type=range]")
        assert tab.page.locator("#submit").is_disabled()
        assert tab.page.locator("#answer").inner_text().split() == ["worst", "0", "1", "best", "no", "score", "yet"]
        tab.page.get_by_label("Score").click()  # in its middle, where it stands
        assert tab.page.locator("#answer").inner_text().split()[-2:] == ["score", "0.5"]
        tab.page.get_by_label("Score").fill("0.25")
        tab.page.locator("#submit").click()
        wait_until(lambda: served.board.scores(slider) == (0.25,))
        skipped = score_item("nonsense")
        served.board.ask([skipped])
        tab.page.locator("#skip").click()
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
def test_an_answer_given_before_a_restart_is_kept_in_the_browser_and_sent_through_the_new_link(
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
        tab.page.goto(f"{server.address}#new-token")  # which knows the name, and sends the answer that it has kept
        wait_until(lambda: board.scores(score_item("a")) == (2,))
        assert len(read_judgements(tmp_path)) == 1
    finally:
        server.close()


@pytest.mark.slow
def test_keys_alone_rank_score_submit_and_take_back(browser: Any, tmp_path: Path) -> None:
    scored, ranked = score_item("x"), attrs.evolve(RANKED, prompt="q")
    with Served(tmp_path) as served:
        served.board.ask([ranked])
        tab = Tab(browser, served.link, "ann")
        tab.shown()
        press = tab.page.keyboard.press
        for key in ("2", "1", "3", "ArrowUp", "ArrowUp", "ArrowRight", "Enter"):  # 2 1 3, and then the first one has 3
            press(key)
        wait_until(lambda: served.board.scores(ranked) == (0.25, 1, 0.25))
        press("Backspace")
        tab.shown()
        assert served.board.scores(ranked) is None
        press("x")
        wait_until(lambda: served.board.scores(ranked) == (None, None, None))
        served.board.withdraw([ranked])
        press("Backspace")
        wait_until(lambda: "no answer to take back" in tab.page.get_by_role("alert").inner_text())
        served.board.ask([scored])
        tab.shown()
        press("4")
        press("ArrowLeft")
        press("Enter")
        wait_until(lambda: served.board.scores(scored) == (3,))
        assert tab.errors == []
    assert [each.value for each in read_judgements(tmp_path)] == [None, 3]


@pytest.mark.slow
def test_a_key_that_is_held_down_answers_one_question_and_the_name_is_typed_at_once(
    browser: Any, tmp_path: Path
) -> None:
    items = [score_item(each) for each in "xyz"]
    with Served(tmp_path) as served:
        served.board.ask(items)
        page = browser.new_page()
        page.goto(served.link)
        page.wait_for_selector("#name:focus")
        page.keyboard.type("ann")
        page.keyboard.press("Enter")
        for key, judged in (("x", 1), ("Enter", 1), ("Backspace", 0)):  # Enter on the button "Cannot judge"
            page.wait_for_selector("#item:not([hidden])")
            if key == "Enter":
                page.keyboard.press("Backspace")
                page.get_by_text("3 open, 0 judged").wait_for()
                page.locator("#skip").focus()
            for _ in range(20):
                page.keyboard.down(key)  # all but the first are repetitions
                page.wait_for_timeout(30)
            page.keyboard.up(key)
            page.get_by_text(f"{3 - judged} open, {judged} judged").wait_for()
        assert page.get_by_role("alert").inner_text() == ""


@pytest.mark.slow
def test_a_question_stays_with_a_person_who_has_no_answer_to_take_back(browser: Any, tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        served.board.ask([score_item("x")])
        ann = Tab(browser, served.link, "ann")
        ann.shown()
        ann.page.keyboard.press("Backspace")
        wait_until(lambda: "no answer to take back" in ann.page.get_by_role("alert").inner_text())
        bob = Tab(browser, served.link, "bob")
        bob.page.wait_for_selector("#idle:not([hidden])")
        ann.score(2)
        wait_until(lambda: served.board.scores(score_item("x")) == (2,))
        assert [ann.errors, bob.errors] == [[], []]


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(900, 480), (390, 560)])
def test_the_bar_covers_no_completion_that_is_marked_by_keys(
    browser: Any, tmp_path: Path, width: int, height: int
) -> None:
    with Served(tmp_path) as served:
        served.board.ask([RANKED])
        tab = Tab(browser, served.link, "ann")
        tab.page.set_viewport_size({"width": width, "height": height})
        tab.shown()
        for key in ("1", "2"):
            tab.page.keyboard.press(key)
        card = tab.page.locator(".card.at").bounding_box()
        assert card["y"] >= 0
        assert card["y"] + card["height"] <= tab.page.locator("#bar").bounding_box()["y"]
        assert tab.errors == []


@pytest.mark.slow
def test_long_completions_leave_the_buttons_in_sight_on_a_phone(browser: Any, tmp_path: Path) -> None:
    texts = [f"{letter} " * 50_000 for letter in "ab"]  # 100 kB each
    with Served(tmp_path) as served:
        served.board.ask([Item("rank", "p", texts)])
        tab = Tab(browser, served.link, "ann")
        tab.page.set_viewport_size({"width": 390, "height": 800})
        tab.shown()
        for place in (0, 20_000, 60_000):
            tab.page.evaluate(f"scrollTo(0, {place})")
            boxes = [tab.page.locator("#submit").bounding_box()]
            boxes += [each.bounding_box() for each in tab.page.locator(".card > .row").all()] if place else []
            seen = [box for box in boxes if box is not None and box["y"] >= 0 and box["y"] + box["height"] <= 800]
            assert len(seen) == (2 if place else 1)  # and the ranks of the completion that is in sight
        tab.page.get_by_role("button", name="A: \u2013").click()
        tab.page.locator(".card").first.get_by_role("button", name="2", exact=True).click()
        tab.page.get_by_role("button", name="B: \u2013").click()
        assert 0 <= tab.page.locator(".card.at > .row").bounding_box()["y"] < 100  # far below the first completion
        assert tab.page.locator(".card.at .text").inner_text().startswith("b b b")
        assert tab.page.locator("#answer").inner_text().split("\n") == ["A: 2", "B: \u2013"]
        tab.page.keyboard.press("Backspace")
        notice = tab.page.get_by_role("alert")
        wait_until(lambda: "no answer to take back" in notice.inner_text())
        assert 0 <= notice.bounding_box()["y"] < 800
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
        assert tab.errors == []


@pytest.mark.slow
def test_markdown_code_and_formulas_are_rendered_and_the_ends_of_the_scale_are_named(
    browser: Any, tmp_path: Path
) -> None:
    answer = "The **square** of $x$:\n\n```python\nx ** 2\n```\n\nand \\(\\frac{a}{b}\\) <b>not bold</b>."
    item = Item("score", "", [answer], [{"role": "user", "content": "What is `x ** 2`?"}], (1, 5, 1))
    with Served(tmp_path, question=_question(HumanConfig())) as served:
        served.board.ask([item])
        tab = Tab(browser, served.link, "ann")
        tab.page.wait_for_selector("#outputs .rendered")
        found = {name: tab.page.locator(f"#outputs {name}").count() for name in ("strong", "pre", "mfrac", "b")}
        assert found == {"strong": 1, "pre": 1, "mfrac": 1, "b": 0}
        assert "<b>not bold</b>" in tab.page.locator("#outputs").inner_text()
        assert tab.page.locator("#answer").inner_text().split() == ["Score", "worst", "1", "2", "3", "4", "5", "best"]
        tab.picture("human-markdown")
        colour = "each => getComputedStyle(each).backgroundColor"
        button = tab.page.get_by_role("button", name="Plain text")
        before = button.evaluate(colour)
        button.click()
        assert button.evaluate(colour) != before
        tab.page.get_by_role("button", name="4", exact=True).click()
        colours = {each.inner_text(): each.evaluate(colour) for each in tab.page.locator("#bar button:visible").all()}
        assert [text for text, each in colours.items() if each == colours["Submit"]] == ["Submit"]  # the bright one
        assert tab.page.locator("#outputs .text").inner_text() == answer
        assert tab.errors == []


@pytest.mark.slow
def test_each_line_has_the_direction_of_its_first_letter_and_tabs_are_four_columns(
    browser: Any, tmp_path: Path
) -> None:
    with Served(tmp_path) as served:
        served.board.ask([score_item("\u0634\u0643\u0631\u0627 123\n\nthanks\n\n```\n\tx\n```", prompt="p")])
        tab = Tab(browser, served.link, "ann")
        tab.shown()
        place = """(words) => {
          const walker = document.createTreeWalker(document.getElementById("outputs"), NodeFilter.SHOW_TEXT);
          for (let node; (node = walker.nextNode());) {
            const at = node.data.indexOf(words);
            if (at < 0) continue;
            const range = document.createRange();
            range.setStart(node, at);
            range.setEnd(node, at + words.length);
            const found = range.getBoundingClientRect();
            return [found.left, found.right];
          }
        }"""
        for _ in range(2):  # as Markdown, and as plain text
            card = tab.page.locator("#outputs .card").bounding_box()
            middle = card["x"] + card["width"] / 2
            assert tab.page.evaluate(place, "\u0634\u0643\u0631\u0627")[0] > middle
            assert tab.page.evaluate(place, "thanks")[1] < middle
            box = tab.page.locator("#outputs :is(pre, .text)").first
            assert box.evaluate("each => getComputedStyle(each).tabSize") == "4"
            tab.page.keyboard.press("t")
        assert tab.errors == []


@pytest.mark.slow
def test_a_link_without_its_token_shows_nothing(browser: Any, tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        page = browser.new_page()
        page.goto(served.server.address)
        assert "not complete" in page.get_by_role("alert").inner_text()
        assert page.locator("#login").is_hidden()
