"""Tests of the run folder: an existing run is refused, resumed or overwritten; other folders are never modified."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from rlcore.checkpoints.run_folder import ASIDE, REPLACED, RunDir, is_run, open_folder, recover, resumes, set_aside
from rlcore.errors import ConfigError, RunExists
from rlcore.loggers.jsonl import JsonLines, JsonlLogger


def make_run(root: Path, name: str = "mine") -> RunDir:
    run = RunDir(open_folder(root, name, "sft"))
    run.write_config({"run": {"name": name}}, {"rlcore": "0.1.0"})
    (run.checkpoints / "00000003").mkdir(parents=True)
    run.metrics.write_text('{"step": 1}\n')
    return run


def test_a_new_run_gets_a_new_folder(tmp_path: Path) -> None:
    folder = open_folder(tmp_path / "deep" / "runs", "mine", "sft")
    assert folder == tmp_path / "deep" / "runs" / "mine"
    assert folder.is_dir()
    assert not is_run(folder)


def test_a_new_run_may_use_an_existing_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert open_folder(tmp_path, "mine", "sft") == tmp_path / "mine"


def test_an_existing_run_is_refused_with_the_three_ways_out(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    for resume in ("never", str(tmp_path / "elsewhere" / "checkpoints" / "00000001")):
        with pytest.raises(RunExists, match=r"run\.resume=auto.*run\.overwrite=true.*another run\.name"):
            resumes(run.path, resume, overwrite=False)
        assert not resumes(run.path, resume, overwrite=True)


def test_a_run_is_resumed_automatically_or_from_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    for resume in ("auto", str(run.checkpoints / "00000003")):
        assert resumes(run.path, resume, overwrite=False)
        with pytest.raises(ConfigError, match="pass only one"):
            resumes(run.path, resume, overwrite=True)


def test_the_contents_of_a_run_are_set_aside_and_put_back(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    kept = tmp_path / "kept.txt"
    kept.write_text("x")
    (run.path / "link").symlink_to(kept)
    (run.path / "linked").symlink_to(tmp_path)
    before = sorted(path.name for path in run.path.iterdir())
    set_aside(run.path)
    assert [path.name for path in run.path.iterdir()] == [REPLACED]
    (run.path / "start").mkdir()
    (run.path / "elsewhere").symlink_to(tmp_path)
    assert recover(run.path)
    assert sorted(path.name for path in run.path.iterdir()) == before
    assert kept.read_text() == "x"
    assert not recover(run.path)


@pytest.mark.parametrize("config", [None, "trainer: {name: ppo}\n"])
def test_a_folder_that_holds_no_run_is_refused_and_unchanged(tmp_path: Path, config: str | None) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter1.tex").write_text("years of work")
    if config is not None:
        (folder / "config.yaml").write_text(config)
    with pytest.raises(RunExists, match="no run of rlcore"):
        open_folder(tmp_path, "thesis", "sft")
    assert (folder / "chapter1.tex").read_text() == "years of work"


@pytest.mark.parametrize("name", [ASIDE, REPLACED])
def test_a_folder_that_holds_only_a_set_aside_run_may_be_used(tmp_path: Path, name: str) -> None:
    aside = make_run(tmp_path, name).path
    (tmp_path / "mine").mkdir()
    aside = aside.rename(tmp_path / "mine" / name)
    assert open_folder(tmp_path, "mine", "sft") == tmp_path / "mine"
    (aside / "config.yaml").unlink()
    with pytest.raises(RunExists, match="left unchanged"):
        open_folder(tmp_path, "mine", "sft")


def test_a_file_with_the_name_of_the_run_is_refused_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(RunExists, match="left unchanged"):
        open_folder(tmp_path, "mine", "sft")
    assert (tmp_path / "mine").read_text() == "x"


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "/abs", "a/b", "a\\b", "a\0b"])
def test_a_run_name_must_be_a_plain_folder_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"run\.name = "):
        open_folder(tmp_path / "runs", name, "sft")
    assert list(tmp_path.iterdir()) == []


def test_runs_without_a_name_get_different_names(tmp_path: Path) -> None:
    names = [open_folder(tmp_path, None, "rlcore-ppo:ppo").name for _ in range(3)]
    assert len(set(names)) == 3
    for name in names:
        assert re.fullmatch(r"rlcore-ppo-ppo-\d{8}-\d{6}(-\d)?", name)


def test_the_config_reads_back_as_options_with_plugins_in_comments(tmp_path: Path) -> None:
    run = RunDir(open_folder(tmp_path, "mine", "sft"))
    config = {
        "trainer": {"name": "ppo", "clip": 0.2, "target": None, "betas": (0.9, 0.95), "huge": math.inf},
        "data": {"prompts": ["naïve: yes", "- x"], "path": Path("a/b"), "reward_fn": make_run, "other": object()},
    }
    run.write_config(config, {"rlcore": "0.1.0", "rlcore-ppo": "0.2.0"})
    text = run.config.read_text(encoding="utf-8")
    assert is_run(run.path)
    assert text.startswith("# rlcore run, written by rlcore 0.1.0")
    assert "\n# plugin rlcore-ppo 0.2.0\n" in text
    back = yaml.safe_load(text)
    assert back["trainer"] == {"name": "ppo", "clip": 0.2, "target": None, "betas": [0.9, 0.95], "huge": math.inf}
    assert back["data"]["prompts"] == ["naïve: yes", "- x"]
    assert back["data"]["path"] == "a/b"
    assert back["data"]["reward_fn"].endswith(":make_run")
    assert back["data"]["other"] == "<builtins.object>"


def test_after_a_rewind_the_files_read_like_an_uninterrupted_run(tmp_path: Path) -> None:
    def record(path: Path, first: int, last: int) -> None:
        logger, rollouts = JsonlLogger(None, SimpleNamespace(dir=path)), JsonLines(path / "rollouts.jsonl")
        for step in range(first, last + 1):
            logger.metrics(step, {"loss/total": 1 / step, "text": float("nan")})
            rollouts.add(step, [{"output": "x" * step}] * 3)
            if step % 2 == 0:
                logger.metrics(step, {"eval/reward/mean": float(step)})
                logger.completions(step, [{"prompt": "pé\n", "output": str(i), "reward": i / 3} for i in range(2)])
        logger.close(None)

    whole = RunDir(open_folder(tmp_path, "whole", "sft"))
    record(whole.path, 1, 9)
    broken = RunDir(open_folder(tmp_path, "broken", "sft"))
    record(broken.path, 1, 7)
    with broken.metrics.open("ab") as file:
        file.write(b'{"step": 8, "loss/to')
    broken.rewind(4)
    assert [json.loads(line)["step"] for line in broken.metrics.read_text().splitlines()] == [1, 2, 2, 3, 4, 4]
    record(broken.path, 5, 9)
    assert broken.metrics.read_bytes() == whole.metrics.read_bytes()
    assert broken.completions.read_bytes() == whole.completions.read_bytes()
    assert broken.rollouts.read_bytes() == whole.rollouts.read_bytes()
    assert {path.name for path in broken.path.iterdir()} == {"metrics.jsonl", "completions.jsonl", "rollouts.jsonl"}


@pytest.mark.parametrize(
    "line",
    [
        "nonsense\n",
        "3\n",
        '{"loss": 2}\n',
        '{"step": "1"}\n',
        "\n",
        "\udcff\n",
        '{"step": 2, "a": ' + "[" * 10**5 + "]" * 10**5 + "}\n",
        '{"step": -1}\n',
    ],
    ids=lambda line: line[:12],
)
def test_damaged_lines_go_in_a_rewind_and_are_counted_in_one_warning(
    tmp_path: Path, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run, good = RunDir(tmp_path), '{"step": 1}\n'
    damaged = line.encode(errors="surrogateescape")
    run.metrics.write_bytes(damaged + good.encode() + 2 * damaged + good.encode())
    run.rewind(5)
    assert run.metrics.read_text() == 2 * good
    (warning,) = capsys.readouterr().err.splitlines()
    assert "damaged lines are removed" in warning
    assert "lines=3" in warning
    assert "metrics.jsonl" in warning


@pytest.mark.parametrize("end", ["", '{"step": 1', '{"step": 1}', '{"step": 6}\n'])
def test_later_lines_and_the_incomplete_line_of_a_killed_process_go_without_a_warning(
    tmp_path: Path, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDir(tmp_path)
    run.metrics.write_text('{"step": 1}\n' + end)
    run.rewind(5)
    assert run.metrics.read_text() == '{"step": 1}\n'
    assert capsys.readouterr().err == ""


def test_a_rewind_to_the_start_empties_the_files(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with run.metrics.open("a") as file:
        file.write('{"step": 0}\n')
    run.rewind(0)
    assert run.metrics.read_text() == '{"step": 0}\n'
    run.rewind(None)
    assert run.metrics.read_text() == ""


def test_a_rewind_that_fails_leaves_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path)

    def fail(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space"):
        run.rewind(0)
    assert run.metrics.read_text() == '{"step": 1}\n'
    assert not list(run.path.glob(".*"))
