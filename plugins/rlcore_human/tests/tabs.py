"""A tab of headless Chromium, for each person who judges."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


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
        self.page = self.context.new_page()
        self.page.on("console", lambda line: self.errors.append(line.text) if line.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
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
        if folder := os.environ.get("RLCORE_SCREENSHOTS"):
            width, height = self.page.viewport_size.values()
            needed = self.page.evaluate("document.documentElement.scrollHeight")
            self.page.set_viewport_size({"width": width, "height": needed})  # the bar is below all cards
            self.page.screenshot(path=Path(folder) / f"{name}.png")
            self.page.set_viewport_size({"width": width, "height": height})


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)
