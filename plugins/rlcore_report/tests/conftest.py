"""Small models and tokenizers, and pages opened in a browser, with what they log."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Opened, watch

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from rlcore_report.run_list import ReportServer
from rlcore_testing.small import make_gpt2, make_tokenizer

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "labelled_runs"), str(HERE.parents[2] / "tests" / "rig")]


@pytest.fixture
def char_tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture
def tiny_gpt2() -> Any:
    return make_gpt2()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[[str], Opened]]:
    """Open an address, in a window of its own."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})

    def opened(address: str) -> Opened:
        found = watch(context.new_page())
        found.page.goto(address)
        return found

    yield opened
    context.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., ReportServer]]:
    started: list[tuple[ReportServer, threading.Thread]] = []

    def start(*arguments: Any, **options: Any) -> ReportServer:
        server = ReportServer(*arguments, **options)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        started.append((server, thread))
        return server

    yield start
    for server, thread in started:
        server.shutdown()
        thread.join()
        server.server_close()
