"""Headless Chromium, and pages opened with what they log."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium; tests that need it are skipped where it is not installed."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield launched
        launched.close()


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
