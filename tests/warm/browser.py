"""Headless Chromium for the tests of pages; the conftest.py of tests/ and that of plugins/ import the fixture."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest


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
        launched = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield launched
        launched.close()
