"""Tests of log events: they go to stderr at the configured level, and the host program's logging is unchanged."""

from __future__ import annotations

import errno
import io
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from rlcore.loggers.jsonl import JsonlLogger
from rlcore.logging import get_logger


@pytest.fixture(autouse=True)
def _own_setup(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("RLCORE_LOG_LEVEL", "RLCORE_LOG_FORMAT", "RANK"):
        monkeypatch.delenv(name, raising=False)
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    log = get_logger("rlcore.test")
    for method in (log.debug, log.info, log.warning, log.error):
        method("event", method=method.__name__)
    out, err = capsys.readouterr()
    assert out == ""
    return [word for word in ("debug", "info", "warning", "error") if f"method={word}" in err]


def test_an_event_is_one_readable_line_with_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    get_logger("rlcore.test").bind(step=3).warning("disk is nearly full", free_mb=1.5)
    (line,) = capsys.readouterr().err.splitlines()
    for part in ("[warning", "disk is nearly full", "[rlcore.test]", "free_mb=1.5", "step=3"):
        assert part in line
    assert "\x1b" not in line


@pytest.mark.parametrize(
    ("level", "rank", "expected"),
    [
        (None, None, ["info", "warning", "error"]),
        ("debug", None, ["debug", "info", "warning", "error"]),
        ("WARNING", "0", ["warning", "error"]),
        ("critical", None, []),
        ("", None, ["info", "warning", "error"]),
        (None, "1", ["error"]),
        ("debug", "3", ["error"]),
        ("critical", "1", []),
    ],
)
def test_level_and_rank_decide_which_events_are_logged(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    level: str | None,
    rank: str | None,
    expected: list[str],
) -> None:
    if level is not None:
        monkeypatch.setenv("RLCORE_LOG_LEVEL", level)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    assert said(capsys) == expected


def test_a_misspelt_level_is_reported_once_with_a_near_match(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RLCORE_LOG_LEVEL", "wraning")
    get_logger("rlcore.test").info("first")
    get_logger("rlcore.test").info("second")
    shown = capsys.readouterr().err
    assert shown.count("did you mean 'warning'?") == 1
    assert "first" in shown
    assert "second" in shown


def test_a_traceback_comes_with_exc_info(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise ValueError("from inside")
    except ValueError:
        get_logger("rlcore.test").error("failed", exc_info=True)
    assert "ValueError: from inside" in capsys.readouterr().err


def test_a_program_that_configured_structlog_receives_the_events(capsys: pytest.CaptureFixture[str]) -> None:
    with structlog.testing.capture_logs() as events:
        get_logger("rlcore.test").warning("event", step=1)
    assert events == [{"event": "event", "step": 1, "logger": "rlcore.test", "log_level": "warning"}]
    assert capsys.readouterr() == ("", "")


def test_the_logging_of_the_users_program_is_not_changed() -> None:
    handlers, level = list(logging.getLogger().handlers), logging.getLogger().level
    get_logger("rlcore.test").warning("event")
    assert logging.getLogger().handlers == handlers
    assert logging.getLogger().level == level
    assert not structlog.is_configured()


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_an_event_that_cannot_be_written_raises_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", FullDisk())
    with pytest.raises(OSError, match="No space"):
        print("anything", file=sys.stderr)
    get_logger("rlcore.test").warning("the disk is full")


def test_structlog_is_imported_only_when_an_event_is_logged() -> None:
    program = (
        "import sys; from rlcore.logging import get_logger; log = get_logger('x'); log.debug('quiet')\n"
        "assert 'structlog' not in sys.modules; log.info('said'); assert 'structlog' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def line_of_next() -> int:
    """Return the number of the line after the caller's."""
    return sys._getframe(1).f_lineno + 1


def test_the_explicit_format_shows_place_time_and_rank_of_an_event(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RLCORE_LOG_FORMAT", "explicit")
    log = get_logger("rlcore.test")
    at = line_of_next()
    log.warning("disk is nearly full", free_mb=1.5)
    log.bind(rank=7).info("bound")
    monkeypatch.setenv("RANK", "3")
    log.error("failed")
    first, second, third = capsys.readouterr().err.splitlines()
    when = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}"
    assert re.match(
        rf"{when} tests/test_events\.py:{at} rank 0 \[warning *\] disk is nearly full .*free_mb=1\.5$", first
    )
    assert re.match(rf"{when} tests/test_events\.py:{at + 1} rank 0 \[info *\] bound .*rank=7$", second)
    assert re.match(rf"{when} tests/test_events\.py:{at + 3} rank 3 \[error *\] failed", third)


def test_the_call_site_of_an_event_is_the_module_that_logs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # rlcore.loggers starts with the same letters as rlcore.logging, whose frames are skipped.
    monkeypatch.setenv("RLCORE_LOG_FORMAT", "explicit")
    JsonlLogger(None, SimpleNamespace(dir=tmp_path / "not there")).metrics(1, {})
    assert re.search(r" loggers/jsonl\.py:\d+ rank 0 ", capsys.readouterr().err)


def test_a_host_that_configured_structlog_gets_the_call_site_in_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLCORE_LOG_FORMAT", "explicit")
    with structlog.testing.capture_logs() as events:
        at = line_of_next()
        get_logger("rlcore.test").warning("event", step=1)
    assert events == [
        {"event": "event", "step": 1, "logger": "rlcore.test", "log_level": "warning", "pathname": __file__,
         "lineno": at, "rank": "0"}
    ]  # fmt: skip


def test_the_first_event_does_not_change_the_global_random_generator(python: Callable[..., Any]) -> None:
    code = (
        "import random, sys\nfrom rlcore.logging import get_logger\n"
        "random.seed(0)\nexpected = random.getstate()\nassert 'structlog' not in sys.modules\n"
        "get_logger('test').info('first')\nassert 'structlog' in sys.modules\n"
        "assert random.getstate() == expected\n"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
