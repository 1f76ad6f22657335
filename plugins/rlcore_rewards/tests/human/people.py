"""A small run that waits for people, and people who answer over HTTP."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from rlcore_rewards.human.board import Board
from rlcore_rewards.human.judgement import Item
from rlcore_rewards.human.web_page import PageServer, build_app

TOKEN = "a-token"


def score_item(output: str, prompt: str = "Once") -> Item:
    return Item("score", prompt, [output], None, (1, 5, 1))


class Person:
    """Someone with a tab open."""

    def __init__(self, link: str, who: str, tab: str | None = None) -> None:
        self.address, _, self.token = link.partition("#")
        self.who, self.tab = who, tab or f"tab of {who}"

    def post(self, action: str, **given: Any) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self.address}api/{action}", json.dumps({"who": self.who, "tab": self.tab, **given}).encode(),
            {"Authorization": f"Bearer {self.token}"},
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=300) as reply:
            return json.load(reply)

    def refused(self, action: str, **given: Any) -> int:
        """Return the status of a request that is refused."""
        try:
            self.post(action, **given)
        except urllib.error.HTTPError as error:
            return error.code
        raise AssertionError(f"{action} was accepted")

    def next(self) -> dict[str, Any] | None:
        return self.post("next")["item"]

    def judge(self, item: dict[str, Any], value: Any, judgement_id: str | None = None) -> bool:
        name = judgement_id or f"{self.who} {item['key']}"
        return self.post("judge", id=name, key=item["key"], value=value, seconds=1.5)["outcome"] == "kept"

    def judge_until(
        self,
        is_over: Callable[[], bool],
        value: Callable[[dict[str, Any]], Any],
        judged: threading.Event | None = None,
    ) -> list[str]:
        """Judge whatever is open, and return the keys of the judgements that were kept; set `judged` at the first."""
        kept = []
        while not is_over():
            try:
                item = self.next()
                if item is not None and self.judge(item, value(item)):
                    kept.append(item["key"])
                    if judged is not None:
                        judged.set()
                elif item is None:
                    time.sleep(0.02)
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.02)  # the run has ended
        return kept


class Served:
    """A board on a page, for the length of a `with` block."""

    def __init__(self, folder: Path, *, question: str = "How good?", **options: Any) -> None:
        self.board, self.question = Board(folder, **options), question

    def __enter__(self) -> Self:
        app = build_app(self.board, TOKEN, question=self.question)
        self.server = PageServer(app, host="127.0.0.1", port=0)
        self.link = f"{self.server.address}#{TOKEN}"
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()


def follow_link(read: Callable[[], str], seconds: float = 300.0) -> str:
    """Return the link that a run prints; `read` returns what it has printed so far."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := re.search(r"people judge completions at (\S+)\s", read()):
            return found[1]
        time.sleep(0.05)
    raise AssertionError(f"no link was printed: {read()}")


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Start a function in a thread; the list receives its result."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    return thread, results
