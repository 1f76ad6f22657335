"""Laws of runs whose files are damaged or odd, and of pages that follow what changes: no run costs another its page."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from report_runs import make_run, write_lines

from rlcore.checkpoints.claim import RunLock
from rlcore.checkpoints.run_folder import RunDir
from rlcore.cli import main
from rlcore_report.html_page import readable_data
from rlcore_report.page_data import page_data
from rlcore_report.run_files import page_stamp
from rlcore_report.run_list import RunList, search
from rlcore_report.run_record import read_run

Change = Callable[[Path], Any]


def rewritten(name: str, old: str, new: str) -> Change:
    def change(run: Path) -> None:
        text = (run / name).read_text()
        assert old in text
        (run / name).write_text(text.replace(old, new))

    return change


def appended(name: str, line: str) -> Change:
    def change(run: Path) -> None:
        with (run / name).open("a") as file:
            file.write(line)

    return change


def checkpoint(run: Path, manifest: str) -> None:
    folder = run / "checkpoints" / "00000006"
    (folder / "model").mkdir(parents=True)
    (folder / "manifest.json").write_text(manifest)


ODD: dict[str, Change] = {
    "metric that is text": appended("metrics.jsonl", '{"step": 7, "reward/mean": "1"}\n'),
    "metric beyond all floats": appended("metrics.jsonl", f'{{"step": 7, "reward/mean": 1{"0" * 400}}}\n'),
    "truncated line": appended("metrics.jsonl", '{"step": 7, "rewa'),
    "reward that is text": appended("completions.jsonl", '{"step": 6, "prompt": "x", "reward": "1"}\n'),
    "reward beyond all floats": appended("completions.jsonl", f'{{"step": 6, "reward": 1{"0" * 400}}}\n'),
    "reward of a turn that is text": appended(
        "rollouts.jsonl", '{"step": 6, "transcript": [{"role": "tool", "content": "3", "reward": "1"}]}\n'
    ),
    "seed .inf": rewritten("config.yaml", "seed: 0", "seed: .inf"),
    "seed {}": rewritten("config.yaml", "seed: 0", "seed: {a: 1}"),
    "steps .nan": rewritten("config.yaml", "steps: 6", "steps: .nan"),
    "bytes for steps": rewritten("config.yaml", "steps: 6", "steps: !!binary aGk="),
    "checkpoint of step inf": lambda run: checkpoint(run, '{"step": 1e999, "score": 1}'),
    "truncated manifest": lambda run: checkpoint(run, '{"step": 6, "sco'),
    "no configuration": lambda run: RunDir(run).config.unlink(),
}


@pytest.mark.parametrize("change", ODD.values(), ids=ODD)
def test_odd_values_are_left_out_and_the_rest_of_the_run_is_shown(tmp_path: Path, change: Change) -> None:
    run, other = make_run(tmp_path / "odd", steps=6), make_run(tmp_path / "other", steps=6)
    change(run)
    data = json.loads(readable_data([run, other]))
    assert [each["name"] for each in data["runs"]] == ["odd", "other"]
    assert data["unreadable"] == []
    assert data["runs"][0]["answer"]["change"]["after"] is not None
    json.dumps(data, allow_nan=False)


def unreadable(run: Path) -> Path:
    RunDir(run).metrics.unlink()
    RunDir(run).metrics.mkdir()
    return run


def test_a_run_that_cannot_be_read_is_shown_with_its_error_and_costs_no_other_its_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = make_run(tmp_path / "good", steps=6)
    bad = [unreadable(make_run(tmp_path / name, steps=6)) for name in ("bad", "worse")]
    data = json.loads(readable_data([bad[0], good, bad[1]]))
    assert [each["name"] for each in data["runs"]] == ["good"]
    assert [each["name"] for each in data["unreadable"]] == ["bad", "worse"]
    assert "is no regular file" in data["unreadable"][0]["problem"]
    assert json.loads(readable_data([good]))["unreadable"] == []
    assert main(["report", str(bad[0])]) == 0
    assert "is no regular file" in RunDir(bad[0]).report.read_text()
    capsys.readouterr()


def judged_rows(runs: RunList) -> dict[str, dict[str, Any]]:
    """Return the rows of a list by their keys once all verdicts are made."""
    until = time.monotonic() + 300
    while any(row["verdict"]["level"] == "pending" for row in runs.rows()) and time.monotonic() < until:
        time.sleep(0.02)
    return {row["key"]: row for row in runs.rows()}


def test_the_list_has_the_error_of_a_run_as_its_verdict_and_makes_those_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlcore_report.run_list.HEAD_START_S", 0)
    unreadable(make_run(tmp_path / "bad", steps=6))
    make_run(tmp_path / "good", steps=6)
    gone = make_run(tmp_path / "elsewhere" / "gone", steps=6)
    runs = RunList([tmp_path], [gone])
    shutil.rmtree(gone)
    rows = judged_rows(runs)
    assert (rows["bad"]["verdict"]["name"], rows["bad"]["last"]) == ("unreadable", None)
    assert "is no regular file" in rows["bad"]["verdict"]["sentence"]
    assert rows["good"]["verdict"]["level"] in ("good", "warning", "bad")
    assert rows["gone"]["step"] == 0
    runs.close()


ROWS: dict[str, list[dict[str, Any]]] = {
    "evaluations": [{"step": i, "eval/reward/mean": value, "reward/mean": 9.0} for i, value in enumerate([1, 4, 3])],
    "one evaluation": [{"step": i, "reward/mean": i / 3, **({} if i else {"eval/reward/mean": 8.0})} for i in range(9)],
    "training alone": [{"step": i, "reward/mean": i % 4 / 7} for i in range(23)],
    "a loss": [{"step": i, "loss/total": 1 / (i + 1)} for i in range(11)],
    "what the trainer names": [{"step": i, "policy/ratio_mean": 1 + i / 9, "loss/total": 2.0} for i in range(11)],
    "nulls": [{"step": i, "reward/mean": None if i % 3 else i} for i in range(20)],
    "nothing": [],
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_the_list_and_the_card_of_a_run_have_the_same_figures_before_and_after_its_files_are_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]]
) -> None:
    monkeypatch.setattr("rlcore_report.run_list.HEAD_START_S", 0)
    run = make_run(tmp_path / "a", steps=40)
    write_lines(RunDir(run).metrics, rows)
    runs = RunList([tmp_path])
    (searched,) = runs.rows()
    parsed = judged_rows(runs)["a"]
    runs.close()
    shown = page_data([read_run(run)])["runs"][0]
    change = shown["answer"]["change"]
    assert {name for name in parsed if parsed[name] != searched[name]} <= {"verdict"}
    assert (parsed["metric"], parsed["last"]) == ((change["metric"], change["after"]) if change else ("", None))
    for name in ("name", "trainer", "model", "step", "total"):
        assert parsed[name] == shown[name]
    assert parsed["state"] == shown["end"]["state"] == "finished"


@pytest.mark.parametrize(
    ("steps", "epochs", "passes", "total"),
    [
        (None, 15.0, 14.9, 150),  # 10 steps for each epoch: step 149 of 150
        (None, 2, 44.7, 7),  # 149 / 44.7 steps for each: two end within the seventh
        (100, 15.0, 14.9, 100), (200, 15.0, 14.9, 150), (None, None, 14.9, None), (None, 15.0, None, None),
    ],
)  # fmt: skip
def test_the_length_of_a_run_follows_from_its_steps_or_epochs(
    tmp_path: Path, *, steps: int | None, epochs: float | None, passes: float | None, total: int | None
) -> None:
    run = make_run(tmp_path / "a", steps=4, run={"steps": steps, "epochs": epochs})
    write_lines(RunDir(run).metrics, [{"step": step, "progress/epoch": passes} for step in (148, 149)])
    assert (read_run(run).total_steps, search(run).total) == (total, total)


def test_the_list_has_the_figures_of_the_card_if_the_file_is_written_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlcore_report.run_list.HEAD_START_S", 0)
    run = make_run(tmp_path / "a", steps=40)
    rows = [{"reward/mean": i / 2, "step": i} for i in range(1, 6)]
    RunDir(run).metrics.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))
    runs = RunList([tmp_path])
    row = judged_rows(runs)["a"]
    runs.close()
    assert (row["step"], row["last"], row["best"]) == (5, 2.5, 2.5)


locks: list[RunLock] = []
CHANGES: dict[str, Change] = {
    "metrics": appended("metrics.jsonl", '{"step": 7, "reward/mean": 1.0}\n'),
    "completions": appended("completions.jsonl", '{"step": 7}\n'),
    "rollouts": appended("rollouts.jsonl", '{"step": 7}\n'),
    "configuration": rewritten("config.yaml", "seed: 0", "seed: 1"),
    "a checkpoint": lambda run: checkpoint(run, '{"step": 6}'),
    "the trained model": lambda run: RunDir(run).model.mkdir(),
    "its report": lambda run: RunDir(run).report.write_text("x"),
    "how it ended": lambda run: RunDir(run).write_end(5, "failed", "ValueError: bad"),
    "a text for the report": lambda run: (run / "report" / "rows.txt").write_text("other rows"),
    "an image": lambda run: (run / "images" / "a.png").write_bytes(b"other"),
    "its lock": lambda run: locks.append(RunLock(run)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_page_is_stale_when_anything_changes_that_it_shows(tmp_path: Path, change: Change) -> None:
    run = make_run(tmp_path / "a", steps=6)
    for folder, name in (("report", "rows.txt"), ("images", "a.png")):
        (run / folder).mkdir()
        (run / folder / name).write_text("rows")
    before = page_stamp(run)
    assert page_stamp(run) == before
    change(run)
    assert page_stamp(run) != before
    while locks:
        locks.pop().release()


def test_a_page_is_stale_when_the_process_of_its_run_is_gone(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", steps=6)
    held = RunLock(run)
    owner = (run / ".lock-owner").read_text()
    going = page_stamp(run)
    held.release()
    (run / ".lock-owner").write_text(owner)  # a process that was killed leaves it
    assert page_stamp(run) != going


def test_a_score_that_a_checkpoint_gets_later_is_shown(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", steps=6)
    checkpoint(run, '{"step": 6, "score": 0.25}')
    before = page_stamp(run)
    rewritten("checkpoints/00000006/manifest.json", "0.25", "0.5")(run)
    assert page_stamp(run) != before


NAMES = ("config.yaml", "metrics.jsonl", "completions.jsonl", "rollouts.jsonl", "end.json", "report/machine.json",
         "report/rows.txt", "images/a.png", "checkpoints/00000006/manifest.json", "model/config.json")  # fmt: skip


@pytest.mark.parametrize("kind", ["fifo", "device", "large"])
def test_no_file_that_is_no_regular_one_or_is_very_large_stops_the_list_or_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The large files are sparse: 7 GB of zeros that take no room on the disk, of which less is read here."""
    monkeypatch.setattr("rlcore_report.run_files.LARGEST_FILE", 8_000_000)
    good = make_run(tmp_path / "runs" / "good", steps=6)
    for i, name in enumerate(NAMES):
        file = make_run(tmp_path / "runs" / f"odd-{i}", steps=6) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if kind == "large":
            with file.open("ab") as content:
                content.truncate(7_000_000_000)
        else:
            file.unlink(missing_ok=True)
            os.mkfifo(file) if kind == "fifo" else file.symlink_to("/dev/zero")
    runs = RunList([tmp_path / "runs"])
    rows = {row["name"]: row for row in runs.rows()}
    assert {"good", "odd-1", "odd-2", "odd-3"} <= rows.keys()
    data = json.loads(readable_data([good, *(tmp_path / "runs" / f"odd-{i}" for i in range(len(NAMES)))]))
    assert "good" in [run["name"] for run in data["runs"]]
    assert len(data["runs"]) + len(data["unreadable"]) == 1 + len(NAMES)
    notes = {run["name"]: run["notes"] for run in data["runs"]}
    assert (kind == "large") == ("metrics.jsonl has 7.0 GB: only its beginning and its end are read." in str(notes))
    runs.close()
