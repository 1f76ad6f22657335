"""Tests of the exit status and the message of a run whose processes failed."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from rlcore.cli import ERROR_FILE, STARTED, main
from rlcore.cli.parser import start_processes
from rlcore.errors import ConfigError
from rlcore_shard.local_processes import _errors, _report


@pytest.mark.parametrize(("failed", "status", "said"), [
    ({}, 0, ""),
    ({1: -signal.SIGKILL}, 1, "rlcore: rank 1 was ended by SIGKILL, as for lack of memory\n"),
    ({0: -signal.SIGSEGV}, 1, "rlcore: rank 0 was ended by SIGSEGV\n"),
    ({0: -signal.SIGTERM, 1: -signal.SIGINT}, 1, ""),  # by the launcher, after another rank has ended
    ({0: 3}, 1, ""),
])  # fmt: skip
def test_a_rank_that_exits_without_an_error_makes_the_exit_status_1(
    failed: dict[int, int], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _report([], failed) == status
    assert capsys.readouterr().err == said


def test_the_earliest_error_is_printed_and_its_code_is_the_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, time_ns in ((0, 30), (1, 9), (2, 20)):
        folder = tmp_path / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        text = json.dumps({"message": f"of rank {rank}", "time_ns": time_ns, "code": 10 + rank})
        (folder / "error.json").write_text(text)
    assert _report(_errors(tmp_path), {2: -signal.SIGKILL, 0: 1}) == 11
    assert capsys.readouterr().err == "rlcore: rank 2 was ended by SIGKILL, as for lack of memory\nof rank 1\n"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["run.processes=9223372036854775808"],
            "run.processes = 9223372036854775808: must be a whole number of at most",
        ),
        (["run.processes=1025"], "run.processes = 1025: must lie in [1, 1024]"),
        (["run.processes=0"], "run.processes = 0: must lie in [1, 1024]"),
        (
            ["run.processes=2", "run.steps=9223372036854775808"],
            "run.steps = 9223372036854775808: must be a whole number",
        ),
        (["run.processes=2", "eval.samples=-1"], "eval.samples = -1: must be at least 1"),
    ],
)
def test_an_option_out_of_range_is_refused_before_a_process_starts(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    overrides: list[str],
    message: str,
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    started: list[int] = []
    monkeypatch.setattr("rlcore_shard.local_processes.start", lambda processes, _: started.append(processes) or 0)
    (tmp_path / "sft.yaml").write_text("trainer: {name: sft}\nmodel: {path: nowhere}\ndata: {samples: [ab]}\n")
    assert main(["train", str(tmp_path / "sft.yaml"), *overrides]) == 1
    assert message in capsys.readouterr().err
    assert not started
    assert main(["train", str(tmp_path / "sft.yaml"), "run.processes=2"]) == 0
    assert started == [2]


def test_a_process_that_a_launcher_started_starts_no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for asked in ({"processes": 2}, {"cluster": "ray"}):
        assert start_processes({"run": asked}, "x.yaml", ["train", "x.yaml"]) is None


@pytest.mark.parametrize(
    "error",
    [OSError(28, "No space left"), ImportError("no acme", name="acme"), ConfigError("wrong"), KeyboardInterrupt()],
)
def test_the_code_that_a_process_records_is_its_exit_status(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    (tmp_path / "run.yaml").write_text("trainer: ppo")
    monkeypatch.setattr("rlcore.training.api.train_from_config", fail)
    monkeypatch.setenv(STARTED, "1")
    monkeypatch.setenv(ERROR_FILE, str(tmp_path / "error.json"))
    status = main(["train", str(tmp_path / "run.yaml")])
    assert status == (130 if isinstance(error, KeyboardInterrupt) else 1)
    (recorded,) = _errors(tmp_path)
    assert recorded["code"] == status
