"""Tests of plugin agreement: when ranks have the same plugins, and what a run logs about its plugins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pluggy
import pytest
import structlog

from rlcore.errors import RanksError
from rlcore.plugins.discovery import Discovery, Plugin, State
from rlcore.training.consensus import agree_on_plugins


class Recorded:
    """Fake ranks whose gathers return recorded values, in order."""

    def __init__(self, *others: Sequence[Plugin]) -> None:
        self.said: list[Any] = []
        for plugins in others:
            self.world = 1
            agree_on_plugins(_Listener(self.said), found(*plugins))  # type: ignore[arg-type]
        self.world = len(others) + 1

    def gather(self, values: list[Any]) -> list[Any]:
        return [*values, *self.said]


class _Listener:
    world = 2

    def __init__(self, said: list[Any]) -> None:
        self.said = said

    def gather(self, values: list[Any]) -> list[Any]:
        self.said += values
        return values


def found(*plugins: Plugin, notes: tuple[str, ...] = ()) -> Discovery:
    return Discovery(plugins, pluggy.PluginManager("rlcore"), notes)


def plugin(dist: str = "acme", version: str = "1", name: str = "main", **rest: Any) -> Plugin:
    return Plugin(dist, version, name, "m", **rest)


BROKEN = plugin(state=State.BROKEN, reason="ValueError: no")
SAME = {
    "ok and heavy": (plugin(), plugin(state=State.HEAVY, reason="imports torch")),
    "broken and disabled": (BROKEN, plugin(state=State.DISABLED, reason="a switch")),
}
OTHER = {
    "a version": (plugin(), plugin(version="2")),
    "an entry point": (plugin(), plugin(name="other")),
    "a dist": (plugin(), plugin("beta")),
    "broken on one": (plugin(), BROKEN),
}


@pytest.mark.parametrize("pair", SAME.values(), ids=SAME)
def test_irrelevant_differences_of_plugins_between_ranks_are_accepted(pair: tuple[Plugin, Plugin]) -> None:
    agree_on_plugins(Recorded([pair[1]]), found(pair[0]))  # type: ignore[arg-type]


@pytest.mark.parametrize("pair", OTHER.values(), ids=OTHER)
def test_differing_plugins_between_ranks_are_refused(pair: tuple[Plugin, Plugin]) -> None:
    with pytest.raises(RanksError):
        agree_on_plugins(Recorded([pair[1]]), found(pair[0]))  # type: ignore[arg-type]


def test_the_refusal_names_every_rank_that_differs_and_both_lists() -> None:
    here, both = plugin("here"), plugin("both")
    with pytest.raises(RanksError) as caught:
        agree_on_plugins(Recorded([both, BROKEN], [both, here], [both]), found(both, here))  # type: ignore[arg-type]
    assert str(caught.value) == (
        "rank 1, 3 has other plugins than rank 0; every rank must have the same\n"
        "  on rank 0 only: here 1 (main)\n"
        "  on rank 1 only: acme 1 (main): broken, ValueError: no\n"
        "  rank 0 has: both 1 (main), here 1 (main)\n"
        "  rank 1 has: both 1 (main)\n"
        "  see on each machine: rlcore list-plugins"
    )


def test_notes_and_remarks_are_logged_once_in_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note, remark = f"twice: {tmp_path}", f"on_x goes: {tmp_path}"  # of this test alone
    for name in ("RLCORE_LOG_LEVEL", "RANK"):
        monkeypatch.delenv(name, raising=False)
    alone = Recorded()
    with structlog.testing.capture_logs() as said:
        for _ in range(2):
            agree_on_plugins(alone, found(plugin(remarks=(remark,)), notes=(note,)))  # type: ignore[arg-type]
    structlog.reset_defaults()  # captured values count as configured from then on
    assert [(each["log_level"], each["event"]) for each in said] == [
        ("warning", note), ("warning", f"acme 1: {remark}"),
    ]  # fmt: skip
