"""What a run sampled is found, chosen from and shown, also while the run goes on."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from rlcore.checkpoints.run_folder import RunDir
from rlcore.errors import ConfigError, NoRollouts
from rlcore_report.rollouts import Query, list_runs, parse_steps, select
from rlcore_report.run_files import find_run, read_rows


def make_run(folder: Path, rows: list[dict[str, Any]], *, completions: int = 0, keep: Any = 8) -> Path:
    folder.mkdir(parents=True)
    run = RunDir(folder)
    run.write_config({"run": {"name": folder.name, "rollouts": keep}}, {"rlcore": "0.1.0"})
    if rows:
        run.rollouts.write_text("".join(json.dumps(row) + "\n" for row in rows))
        run.metrics.write_text("".join(json.dumps({"step": row["step"], "loss": 1.0}) + "\n" for row in rows))
    if completions:
        run.completions.write_text(
            "".join(json.dumps({"step": 9, "output": str(i)}) + "\n" for i in range(completions))
        )
    return folder


def row(step: int, output: str, reward: float | None = 0.0, prompt: str = "p") -> dict[str, Any]:
    return {"step": step, "prompt": prompt, "output": output, "length": 1, "ended": True, "reward": reward}


ROWS = [
    row(1, "a", 0.5),
    row(1, "b", -2.0),
    row(2, "c", None),
    row(2, "Straße", 3.0),
    row(4, "e", 3.0, "Dear"),
    row(4, "f", 1.0),
]


def chosen(run: Path, **query: Any) -> list[str]:
    return [each["output"] for rows in select(run, Query(**query)).values() for each in rows]


@pytest.mark.parametrize(
    ("query", "outputs"),
    [
        ({}, ["e", "f"]),
        ({"steps": (2, 2)}, ["c", "Straße"]),
        ({"steps": (2, math.inf)}, ["c", "Straße", "e", "f"]),
        ({"steps": (0, 3)}, ["a", "b", "c", "Straße"]),
        ({"best": 3}, ["Straße", "e", "f"]),
        ({"worst": 2}, ["b", "a"]),
        ({"best": 1, "worst": 1}, ["Straße", "b"]),
        ({"best": 4, "worst": 4}, ["Straße", "e", "f", "a", "b"]),
        ({"best": 9, "steps": (1, 1)}, ["a", "b"]),
        ({"text": "STRASSE"}, ["Straße"]),
        ({"text": "dear"}, ["e"]),
        ({"text": "e", "worst": 1}, ["Straße"]),
    ],
)
def test_rows_are_chosen_by_step_reward_and_text(tmp_path: Path, query: dict[str, Any], outputs: list[str]) -> None:
    assert chosen(make_run(tmp_path / "mine", ROWS), **query) == outputs


def test_of_equal_rewards_the_earlier_come_first(tmp_path: Path) -> None:
    run = make_run(tmp_path / "mine", [row(step, str(step), 1.0) for step in range(5)])
    assert chosen(run, best=2) == ["0", "1"]
    assert chosen(run, worst=2) == ["0", "1"]
    assert chosen(run, best=2, worst=2) == ["0", "1", "2", "3"]


def test_completions_are_read_from_their_own_file(tmp_path: Path) -> None:
    run = make_run(tmp_path / "mine", ROWS, completions=2)
    (rows,) = select(run, Query(), completions=True).values()
    assert [(each["step"], each["output"]) for each in rows] == [(9, "0"), (9, "1")]


def test_a_line_half_written_or_damaged_is_no_row(tmp_path: Path) -> None:
    run = RunDir(make_run(tmp_path / "mine", ROWS[:2]))
    whole = list(read_rows(run.rollouts))
    with run.rollouts.open("ab") as file:
        for line in (b"nonsense\n", b"\xff\n", b"3\n", b'{"output": "no step"}\n', b'{"step": "1"}\n', b'{"step": 2}'):
            file.write(line)
    assert list(read_rows(run.rollouts)) == whole
    text = run.rollouts.read_bytes()
    for end in range(len(text)):
        run.rollouts.write_bytes(text[:end])
        assert list(read_rows(run.rollouts)) == whole[: min(2, text[:end].count(b"\n"))]


@pytest.mark.parametrize(
    ("text", "steps"),
    [("7", (7, 7)), ("0", (0, 0)), ("3:9", (3, 9)), ("3:", (3, math.inf)), (":9", (0, 9)), ("4:4", (4, 4))],
)
def test_steps_are_given_as_a_number_or_a_range(text: str, steps: tuple[int, float]) -> None:
    assert parse_steps(text) == steps


@pytest.mark.parametrize("text", ["", ":", "x", "1:2:3", "-1", "1.5", "3-9", "²"])
def test_malformed_ranges_of_steps_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="must be a step or a range, such as 7, 3:9, 3: or :9"):
        parse_steps(text)


def test_a_range_the_wrong_way_round_is_refused() -> None:
    with pytest.raises(ConfigError, match="write 3:9"):
        parse_steps("9:3")


def test_a_run_is_found_by_its_name_or_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs" / "first", ROWS)
    elsewhere = make_run(tmp_path / "deep" / "second", ROWS)
    assert find_run("first") == Path("runs/first")
    assert find_run("runs/first/") == Path("runs/first")
    assert find_run(str(elsewhere)) == elsewhere
    monkeypatch.chdir(elsewhere)
    assert find_run(".") == Path()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("frist", "no run in frist or runs/frist; did you mean 'first'"),
        ("other", "no run in other or runs/other; `rlcore rollouts` lists the runs under ./runs"),
        ("runs", "runs contains runs, the latest is runs/first: name one of them"),
        ("a\0b", "no run in a\0b or runs/a\0b; `rlcore rollouts` lists the runs"),
    ],
)
def test_an_unknown_run_is_an_error_that_lists_the_existing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs" / "first", ROWS)
    (tmp_path / "other").mkdir()
    with pytest.raises(NoRollouts) as caught:
        find_run(name)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "keep", "query", "said"),
    [
        ([], "none", {}, "keeps no rollouts because run.rollouts = none: set it to a number per step, or to all"),
        ([], 0, {"best": 1}, "because run.rollouts = 0: set it"),
        ([], 8, {}, "no rollouts yet: no step has finished, or its trainer uses no reward function"),
        (ROWS, 8, {"steps": (3, 3)}, "none of the rollouts matches; the file has steps 1 to 4"),
        (ROWS, 8, {"text": "zzz", "best": 3}, "none of the rollouts matches"),
        ([row(1, "a", None)], 8, {"worst": 1}, "none of the rollouts has a reward"),
    ],
)
def test_an_empty_selection_is_an_error_with_the_reason(
    tmp_path: Path, rows: list[dict[str, Any]], keep: Any, query: dict[str, Any], said: str
) -> None:
    run = make_run(tmp_path / "mine", rows, keep=keep)
    with pytest.raises(NoRollouts) as caught:
        select(run, Query(**query))
    assert said in str(caught.value)


def test_without_an_evaluation_there_are_no_completions(tmp_path: Path) -> None:
    with pytest.raises(NoRollouts, match="no completions yet: no evaluation has finished"):
        select(make_run(tmp_path / "mine", ROWS), Query(), completions=True)


def test_rollouts_are_shown_although_the_configuration_is_damaged(tmp_path: Path) -> None:
    run = make_run(tmp_path / "mine", [])
    mark = (run / "config.yaml").read_text().splitlines()[0]
    for text in (f"{mark}\n[", f"{mark}\n3\n", f"{mark}\nrun:\n", mark):
        (run / "config.yaml").write_text(text)
        with pytest.raises(NoRollouts, match="no rollouts yet"):
            select(run, Query())


def test_runs_are_listed_by_their_last_change_newest_first(tmp_path: Path) -> None:
    for age, name in enumerate(("newest", "older", "oldest")):
        run = make_run(tmp_path / name, ROWS[: 2 * age], completions=age)
        for file in run.iterdir():
            os.utime(file, (1e9 - age, 1e9 - age))
    (tmp_path / "no run").mkdir()
    found = [(each.run, each.steps, each.rollouts, each.completions) for each in list_runs(tmp_path)]
    assert found == [("newest", 0, 0, 0), ("older", 1, 2, 1), ("oldest", 2, 4, 2)]


def test_a_folder_without_runs_is_an_error_that_says_so(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(NoRollouts, match="contains no run; name the folder of a run"):
            list_runs(folder)
