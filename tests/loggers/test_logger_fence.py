"""Tests of logger isolation: a logger that raises affects neither the run nor the other loggers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from rlcore.errors import PluginError
from rlcore.loggers import Loggers


class Recorder:
    def __init__(self, failing: str = "") -> None:
        self.failing = failing
        self.calls: list[str] = []

    def _note(self, name: str) -> None:
        self.calls.append(name)
        if self.failing in {name, "all"}:
            raise SystemExit("no network") if name == "completions" else ValueError("no network")

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self._note("metrics")
        metrics["added"] = 1.0  # type: ignore[index]

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self._note("completions")

    def close(self, error: BaseException | None) -> None:
        self._note("close")


@pytest.mark.parametrize("failing", ["metrics", "completions", "close", "all"])
def test_a_raising_logger_is_named_once_dropped_and_closed(failing: str, capsys: pytest.CaptureFixture[str]) -> None:
    first, broken, last = Recorder(), Recorder(failing), Recorder()
    loggers = Loggers([first, broken, last])
    metrics = {"a": 1.0}
    for step in (1, 2):
        loggers.metrics(step, metrics)
        loggers.completions(step, [])
    loggers.close(None)
    assert first.calls == last.calls == ["metrics", "completions"] * 2 + ["close"]
    assert broken.calls.count("close") == 1
    if failing != "close":
        assert broken.calls == [*first.calls[: broken.calls.index("close")], "close"]
    shown = capsys.readouterr().err
    assert shown.count("logger dropped for the rest of the run") == 1
    assert "test_logger_fence:Recorder" in shown
    assert "no network" in shown
    assert metrics == {"a": 1.0}


def test_in_strict_mode_a_raising_logger_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLCORE_STRICT_PLUGINS", "1")
    with pytest.raises(PluginError, match=r"Recorder: metrics raised ValueError: no network"):
        Loggers([Recorder("metrics")]).metrics(1, {})


def test_an_interrupt_in_a_logger_ends_the_run() -> None:
    class Interrupted(Recorder):
        def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Loggers([Interrupted()]).metrics(1, {})
