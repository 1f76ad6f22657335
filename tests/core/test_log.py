"""Events go to stderr, as loud as asked, and the host program's logging stays its own."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
import structlog

from rlcore.log import get_logger


@pytest.fixture(autouse=True)
def _own_setup(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RLCORE_LOG_LEVEL", "RANK"):
        monkeypatch.delenv(name, raising=False)
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
def test_level_and_rank_decide_what_is_said(
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


def test_a_misspelt_level_is_said_once_with_a_near_match(
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


def test_a_host_that_configured_structlog_gets_the_events(capsys: pytest.CaptureFixture[str]) -> None:
    with structlog.testing.capture_logs() as events:
        get_logger("rlcore.test").warning("event", step=1)
    assert events == [{"event": "event", "step": 1, "logger": "rlcore.test", "log_level": "warning"}]
    assert capsys.readouterr() == ("", "")


def test_nothing_of_the_hosts_logging_changes() -> None:
    handlers, level = list(logging.getLogger().handlers), logging.getLogger().level
    get_logger("rlcore.test").warning("event")
    assert logging.getLogger().handlers == handlers
    assert logging.getLogger().level == level
    assert not structlog.is_configured()


def test_structlog_is_imported_only_when_something_is_said() -> None:
    program = (
        "import sys; from rlcore.log import get_logger; log = get_logger('x'); log.debug('quiet')\n"
        "assert 'structlog' not in sys.modules; log.info('said'); assert 'structlog' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
