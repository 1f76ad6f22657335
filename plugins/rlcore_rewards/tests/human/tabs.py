"""A tab of headless Chromium, for each person who judges."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from browser import picture, watch


class Tab:
    """A tab of a person, in a browser of their own; every error of its console is kept."""

    def __init__(self, browser: Any, link: str, who: str) -> None:
        self.context = browser.new_context(viewport={"width": 900, "height": 640})
        self.who = who
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.open(link)
        self.enter()

    def open(self, link: str) -> None:
        """Open a link in a new tab of the same browser."""
        self.page = watch(self.context.new_page(), self.errors, self.requests).page
        self.page.goto(link)

    def enter(self) -> None:
        self.page.get_by_label("Your name").fill(self.who)
        self.page.get_by_text("Start").click()

    def shown(self) -> str:
        self.page.wait_for_selector("#item:not([hidden])")
        return str(self.page.locator("#outputs :is(.text, .rendered)").first.inner_text())

    def score(self, score: int) -> None:
        self.page.get_by_role("button", name=str(score), exact=True).click()
        self.page.locator("#submit").click()

    def picture(self, name: str) -> None:
        """Write a picture for the docs, of a window as high as the page, so that the bar is below all cards."""
        width, height = self.page.viewport_size.values()
        needed = self.page.evaluate("document.documentElement.scrollHeight")
        self.page.set_viewport_size({"width": width, "height": needed})
        picture(self.page, name)
        self.page.set_viewport_size({"width": width, "height": height})


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)
