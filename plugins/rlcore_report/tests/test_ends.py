"""Laws of how a run ended: the run records it, and every view of the run has it in front, with what continues it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from report_runs import make_run

import rlcore
from rlcore.checkpoints.claim import RunLock
from rlcore.checkpoints.run_folder import RunDir
from rlcore.cli import main
from rlcore.errors import RewardError
from rlcore_report.page_data import page_data
from rlcore_report.run_list import RunList
from rlcore_report.run_record import read_run


def train(model: Any, tokenizer: Any, root: Path, reward_fn: Any, **run: Any) -> Any:
    return rlcore.train(
        model, trainer={"name": "reinforce", "rollouts": 2}, tokenizer=tokenizer, prompts=["ab", "ba"],
        reward_fn=reward_fn, gen={"max_new_tokens": 2}, checkpoint={"every": 2}, loggers=[],
        run={"root": str(root), "name": "a", "steps": 4, "report": False, **run},
    )  # fmt: skip


def test_a_run_records_an_error_a_stop_and_its_end_and_forgets_them_when_it_goes_on(
    tmp_path: Path, tiny_gpt2: Any, char_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    calls = 0

    def reward(outputs: list[str]) -> list[float]:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise ValueError("no judge")
        return [float(len(each)) for each in outputs]

    with pytest.raises(RewardError):
        train(tiny_gpt2, char_tokenizer, tmp_path / "runs", reward)
    end = read_run(Path("runs/a")).end
    assert (end.state, end.level) == ("failed", "bad")
    assert end.sentence.startswith("Failed after step 3 of 4: RewardError: reward function")
    assert "ValueError: no judge" in end.sentence
    assert end.command.startswith('rlcore.train(..., run={"root": "runs", "name": "a", "resume": "auto"})')

    class Stop:
        def on_step(self, run: Any) -> None:
            assert not RunDir(run.dir).end.exists()
            run.request_stop("enough")

    result = rlcore.train(
        tiny_gpt2, trainer={"name": "reinforce", "rollouts": 2}, tokenizer=char_tokenizer, prompts=["ab", "ba"],
        reward_fn=reward, gen={"max_new_tokens": 2}, checkpoint={"every": 2}, loggers=[], observers=[Stop()],
        run={"root": "runs", "name": "a", "steps": 4, "report": False, "resume": "auto"},
    )  # fmt: skip
    assert read_run(result.run_dir).end.sentence == "Stopped after step 3 of 4: enough."
    train(tiny_gpt2, char_tokenizer, tmp_path / "runs", reward, resume="auto")
    assert read_run(result.run_dir).end.sentence == "Finished at step 4 of 4."


def killed(folder: Path) -> Path:
    """Return a run whose process was killed in step 8: no process has its lock, and nothing says how it ended."""
    run = make_run(folder, steps=7, run={"steps": 20, "root": str(folder.parent), "overwrite": True})
    RunDir(run).end.unlink()
    (run / "checkpoints" / "00000004").mkdir(parents=True)
    return run


def test_a_killed_run_is_named_in_its_card_in_the_list_and_where_it_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run, other = killed(Path("runs/dead")), make_run(Path("runs/whole"), steps=20)
    end = page_data([read_run(run)])["runs"][0]["end"]
    assert (end["state"], end["level"]) == ("killed", "bad")
    assert end["sentence"].startswith("Killed after step 7 of 20: its process ended without a word")
    command = "rlcore train runs/dead/config.yaml run.root=runs run.name=dead run.resume=auto run.overwrite=false"
    assert end["command"] == command
    runs = RunList([Path("runs")])
    assert {row["name"]: row["state"] for row in runs.rows()} == {"dead": "killed", "whole": "finished"}
    runs.close()
    assert main(["compare", str(run), str(other)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("dead: Killed after step 7 of 20")
    assert f"  {command}\n" in text
    assert "These runs have not made equally many steps (7 to 20)" in text


def test_a_run_that_goes_on_and_writes_nothing_is_silent_after_ten_minutes_and_twenty_steps(tmp_path: Path) -> None:
    run = killed(tmp_path / "a")
    lock = RunLock(run)
    assert read_run(run).end.state == "running"
    seconds = {name: RunDir(run).metrics.stat().st_mtime - age for name, age in (("old", 660), ("older", 90_000))}
    for name, state in (("old", "silent"), ("older", "silent")):
        for file in run.iterdir():
            os.utime(file, (seconds[name], seconds[name]))
        assert read_run(run).end.state == state
    slow = RunDir(run).metrics
    slow.write_text(slow.read_text().replace('"time/step_s": 0.5', '"time/step_s": 5000'))
    os.utime(slow, (seconds["old"], seconds["old"]))
    assert read_run(run).end.state == "running"  # its steps take longer than that
    lock.release()
