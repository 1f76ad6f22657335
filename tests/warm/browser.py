"""Headless Chromium for the tests of pages: the fixture, the four views of every page, and the pictures of the docs.

The conftest.py of tests/ and that of plugins/ import the fixture. Two variables name folders for pictures:

    RLCORE_SCREENSHOTS=docs/images    the pictures that the docs show
    RLCORE_VIEWS=/tmp/views           every page in its four views, for a person to look at
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_MS = 300_000
"""Milliseconds after which an event that a page waits for is missing."""
VIEWS = [(width, scheme) for width in (1400, 390) for scheme in ("light", "dark")]
BACKGROUND = """() => {
  const canvas = document.createElement("i");
  canvas.style.backgroundColor = "Canvas";  // what is seen where neither the body nor the root has a colour
  document.body.append(canvas);
  const colours = [document.body, document.documentElement, canvas].map(each => getComputedStyle(each).backgroundColor);
  canvas.remove();
  return colours.find(each => each !== "rgba(0, 0, 0, 0)").match(/[\\d.]+/g).slice(0, 3).map(Number);
}"""
"""Red, green and blue of a page's background."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium, with playwright's synchronous interface; tests that need it are skipped where it is missing.

    Playwright keeps an event loop running in this thread, in which no other test could call `asyncio.run` or start
    playwright again: it therefore ends with the module that asked for it.
    """
    interface = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")
    with interface.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"], timeout=LIMIT_MS)
        launched.new_context, launched.new_page = map(_patient, (launched.new_context, launched.new_page))
        yield launched
        launched.close()


def _patient(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes a context or page, whose waits last as long as a busy machine may need."""

    def made(**options: Any) -> Any:
        found = make(**options)
        found.set_default_timeout(LIMIT_MS)
        return found

    return made


@attrs.frozen
class Opened:
    """A page, the errors of its console and its scripts, and the addresses that it requested."""

    page: Any
    problems: list[str]
    requests: list[str]

    @property
    def outside(self) -> list[str]:
        """The requests to other hosts than that of the page."""
        here = urlsplit(self.page.url)
        inside = "file:" if here.scheme == "file" else f"{here.scheme}://{here.netloc}/"
        return [url for url in self.requests if not url.startswith((inside, "data:", "blob:", "about:"))]


def watch(page: Any, problems: list[str] | None = None, requests: list[str] | None = None) -> Opened:
    """Keep what goes wrong on pages that are opened in this tab, and what they request, in new lists or given ones."""
    opened = Opened(page, [] if problems is None else problems, [] if requests is None else requests)
    page.on("console", lambda message: opened.problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: opened.problems.append(str(error)))
    page.on("request", lambda request: opened.requests.append(request.url))
    return opened


def four_views(browser: Any, address: str, *, ready: str = "body", name: str = "") -> Iterator[Opened]:
    """Open a page at 1400 and at 390 pixels, light and dark, each in a browser context of its own.

    After each view, when the caller's body of the loop has ended, there must be no error in the console, no request to
    another host, nothing wider than the window, and a background of the scheme's brightness.

    Args:
        browser: the fixture.
        address: the page's.
        ready: a selector of what the caller waits for.
        name: of the pictures in RLCORE_VIEWS; without it there are none.
    """
    for width, scheme in VIEWS:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        try:
            opened = watch(context.new_page())
            opened.page.goto(address)
            opened.page.wait_for_selector(ready)
            assert_in_order(opened, scheme)
            if name:
                view_picture(opened.page, f"{name}-{width}-{scheme}")
            yield opened
            assert_in_order(opened, scheme)
        finally:
            context.close()


def assert_in_order(opened: Opened, scheme: str) -> None:
    """Assert what `four_views` promises of a page as it is now."""
    where = f"{opened.page.url}, {opened.page.viewport_size['width']} px, {scheme}"
    assert opened.problems == [], where
    assert opened.outside == [], where
    assert_fits(opened.page, where)
    assert_scheme(opened.page, scheme, where)


def assert_fits(page: Any, where: str = "") -> None:
    """Assert that the page cannot be scrolled to the side."""
    wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wider <= 0, f"{where or page.url} is {wider} px wider than the window"


def assert_scheme(page: Any, scheme: str, where: str = "") -> None:
    """Assert that the page's background is bright in the light scheme, and dark in the other."""
    colour = page.evaluate(BACKGROUND)
    assert (sum(colour) / 3 > 127) == (scheme == "light"), f"{where or page.url}: the background is {colour}"


def picture(page: Any, name: str) -> None:
    """Write a picture for the docs to the folder RLCORE_SCREENSHOTS of the project, if it is set."""
    if folder := os.environ.get("RLCORE_SCREENSHOTS"):
        page.screenshot(path=str(ROOT / folder / f"{name}.png"))  # a test may have left the folder of the project


def view_picture(page: Any, name: str) -> None:
    """Write a picture of the whole page to the folder RLCORE_VIEWS, if it is set."""
    if folder := os.environ.get("RLCORE_VIEWS"):
        page.screenshot(path=str(ROOT / folder / f"{name}.png"), full_page=True)
