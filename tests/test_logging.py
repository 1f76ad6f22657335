"""Tests of verbosity, format and progress bars: set in Python or by environment, and inherited by child processes."""

from __future__ import annotations

import logging as stdlib
import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest
import structlog

from rlcore import logging
from rlcore.cli import main
from rlcore.errors import ConfigError
from rlcore.logging import FORMAT, check_environment
from rlcore_transformers.data.sources import load_source

VARIABLES = ("RLCORE_LOG_LEVEL", "RLCORE_LOG_FORMAT", "RLCORE_PROGRESS")
REPORT = (
    "from rlcore import logging; from rlcore.logging import FORMAT\n"
    "print(logging.get_verbosity(), FORMAT.read(), logging.is_progress_bar_enabled())"
)


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "RANK"):
        monkeypatch.setenv(name, "")  # so that it is restored
    structlog.reset_defaults()


def test_rlcore_logging_does_not_shadow_the_standard_module() -> None:
    assert stdlib is not logging
    assert Path(stdlib.__file__).parent.name == "logging"
    assert stdlib.getLogger("anything").name == "anything"


@pytest.mark.parametrize(
    ("given", "number"),
    [
        ("debug", 10),
        ("info", 20),
        ("WARNING", 30),
        (" error ", 40),
        ("critical", 50),
        (stdlib.INFO, 20),
        (0, 0),
        (25, 25),
    ],
)
def test_verbosity_is_set_by_name_or_number(given: int | str, number: int) -> None:
    logging.set_verbosity(given)
    assert logging.get_verbosity() == number


def test_each_level_has_a_function_of_its_own() -> None:
    for name in ("debug", "info", "warning", "error"):
        getattr(logging, f"set_verbosity_{name}")()
        assert logging.get_verbosity() == getattr(stdlib, name.upper())


def test_the_verbosity_decides_which_events_are_logged(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.get_logger("rlcore.test")
    for level, said in (("error", ["error"]), ("debug", ["debug", "info", "warning", "error"]), (31, ["error"])):
        logging.set_verbosity(level)
        for method in (log.debug, log.info, log.warning, log.error):
            method("event", method=method.__name__)
        shown = capsys.readouterr().err
        assert [word for word in ("debug", "info", "warning", "error") if f"method={word}" in shown] == said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("wraning", "must be one of debug, info, warning, error, critical, or a number.*did you mean 'warning'"),
        ("", "must be one of debug"),
        (-10, "must be one of debug"),
        ("²", "must be one of debug"),
        (True, "must be the name or the number"),
        (None, "must be the name or the number"),
        (20.0, "must be the name or the number"),
    ],
)
def test_an_unknown_verbosity_is_refused_and_changes_nothing(given: object, said: str) -> None:
    logging.set_verbosity_warning()
    with pytest.raises(ConfigError, match=said):
        logging.set_verbosity(given)  # type: ignore[arg-type]
    assert logging.get_verbosity() == stdlib.WARNING


def test_a_verbosity_set_in_python_overrides_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(VARIABLES, ("error", "explicit", "0"), strict=True):
        monkeypatch.setenv(name, value)
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == (stdlib.ERROR, False)
    logging.set_verbosity_debug()
    logging.reset_format()
    logging.enable_progress_bar()
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == (stdlib.DEBUG, True)


def test_a_started_rank_inherits_the_verbosity_and_an_unrelated_process_does_not() -> None:
    logging.set_verbosity_error()
    logging.enable_explicit_format()
    logging.disable_progress_bar()
    done = subprocess.run([sys.executable, "-c", REPORT], capture_output=True, text=True, check=True)
    assert done.stdout == "40 explicit False\n"
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(logging.get_verbosity) == stdlib.ERROR
        assert not pool.apply(logging.is_progress_bar_enabled)


@pytest.mark.parametrize(("word", "enabled"), [("1", True), ("on", True), ("", True), ("0", False), ("No", False)])
def test_progress_bars_can_be_disabled_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, word: str, *, enabled: bool
) -> None:
    monkeypatch.setenv("RLCORE_PROGRESS", word)
    assert logging.is_progress_bar_enabled() is enabled


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("RLCORE_LOG_LEVEL", "lous", "'lous': must be one of debug, info, warning, error, critical, or a number"),
        ("RLCORE_LOG_FORMAT", "explicitly", "must be one of plain, explicit; did you mean 'explicit'?"),
        ("RLCORE_PROGRESS", "maybe", "must be one of 1, true, yes, on, 0, false, no, off"),
    ],
)
def test_a_wrong_environment_variable_is_an_error_of_a_run_and_a_warning_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str, said: str
) -> None:
    check_environment()
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        check_environment()
    assert str(caught.value).startswith(f"{name} = '{value}': ")
    assert said in str(caught.value)
    for _ in range(2):
        logging.get_logger("rlcore.test").info("event")
        assert logging.is_progress_bar_enabled()
        assert logging.get_verbosity() == stdlib.INFO
    shown = capsys.readouterr().err
    assert shown.count(said) == 1
    assert shown.count("event") == 2


def test_the_command_line_sets_verbosity_and_progress_for_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[object, ...]] = []

    def report(values: dict[str, Any], where: str) -> None:
        heard.append((values["run"], logging.get_verbosity(), FORMAT.read(), logging.is_progress_bar_enabled()))

    monkeypatch.setattr("rlcore.training.api.train_from_config", report)
    monkeypatch.setenv("RLCORE_LOG_LEVEL", "error")
    file = tmp_path / "f.yaml"
    file.write_text("run: {steps: 1}")
    assert main(["train", str(file)]) == 0
    assert heard.pop() == ({"steps": 1}, stdlib.ERROR, "plain", True)
    switches = ["--log-level", "debug", "--log-format", "explicit", "--no-progress"]
    for words in (
        [str(file), "run.steps=2", "run.name=x", *switches],
        [*switches, str(file), "run.steps=2", "run.name=x"],
        [str(file), *switches, "run.steps=2", "run.name=x"],
        [str(file), "run.steps=2", *switches, "run.name=x"],
    ):
        for name in VARIABLES:
            monkeypatch.setenv(name, "")
        assert main(["train", *words]) == 0
        assert heard.pop() == ({"steps": 2, "name": "x"}, stdlib.DEBUG, "explicit", False)
    for words in (["--log-level", "loud", str(file)], [str(file), "--loud", "a=1"], [str(file), "--log-format", "x"]):
        with pytest.raises(SystemExit, match="2"):
            main(["train", *words])
    assert not heard


def test_bars_of_loading_are_shown_or_not_as_our_own_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    for number, enabled in enumerate((True, False, True)):
        (logging.enable_progress_bar if enabled else logging.disable_progress_bar)()
        file = tmp_path / f"{number}.parquet"
        datasets.Dataset.from_dict({"prompt": [str(number)]}).to_parquet(str(file))
        capfd.readouterr()  # the bar of writing
        assert len(load_source(str(file))) == 1
        assert ("\r" in capfd.readouterr().err) is enabled


def test_no_event_contains_control_characters_or_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.get_logger("rlcore.test")
    try:
        raise ValueError("worse\x1b[2J at ftp://me:s3cret@host")
    except ValueError as error:
        log.error("bad\x1b]0;title\x07", run="r\x9b", api_key="s3cret", more={"password": "s3cret"}, exc_info=error)
    shown = capsys.readouterr().err
    assert shown.replace("\n", "").isprintable()
    assert r"bad\x1b]0;title\x07" in shown
    assert r"ValueError: worse\x1b[2J at ftp://<hidden>@host" in shown
    assert "api_key=<hidden>" in shown
    assert "s3cret" not in shown
