"""Pages opened in a browser, with what they log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest


@attrs.frozen
class Opened:
    """A page, what went wrong on it, and the addresses that it requested."""

    page: Any
    problems: list[str]
    requests: list[str]


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[[str], Opened]]:
    """Open an address, in a window of its own."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})

    def opened(address: str) -> Opened:
        found = Opened(context.new_page(), [], [])
        found.page.on("console", lambda message: message.type == "error" and found.problems.append(message.text))
        found.page.on("pageerror", lambda error: found.problems.append(str(error)))
        found.page.on("request", lambda request: found.requests.append(request.url))
        found.page.goto(address)
        return found

    yield opened
    context.close()
