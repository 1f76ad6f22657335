"""Tests of the run folder: an existing run is refused, resumed or overwritten; other folders are never modified."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from rlcore.checkpoints.run_folder import RunDir, is_run
from rlcore.errors import ConfigError, RunExists
from rlcore.loggers.jsonl import JsonLines, JsonlLogger


def make_run(root: Path, name: str = "mine") -> RunDir:
    run = RunDir.create(root, name, overwrite=False)
    run.write_config({"run": {"name": name}}, {"rlcore": "0.1.0"})
    (run.checkpoints / "00000003").mkdir(parents=True)
    run.metrics.write_text('{"step": 1}\n')
    return run


def test_a_new_run_gets_a_new_folder(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "deep" / "runs", "mine", overwrite=False)
    assert run.path == tmp_path / "deep" / "runs" / "mine"
    assert run.path.is_dir()
    assert not run.is_continued
    assert not is_run(run.path)


def test_an_empty_folder_will_do(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert not RunDir.create(tmp_path, "mine", overwrite=False, resume="auto").is_continued


def test_an_existing_run_is_refused_with_the_three_ways_out(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    for resume in ("never", str(tmp_path / "elsewhere" / "checkpoints" / "00000001")):
        with pytest.raises(RunExists, match=r"run\.resume=auto.*run\.overwrite=true.*another run\.name"):
            RunDir.create(tmp_path, "mine", overwrite=False, resume=resume)
    assert run.metrics.read_text() == '{"step": 1}\n'


def test_auto_goes_on_with_an_existing_run(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    again = RunDir.create(tmp_path, "mine", overwrite=False, resume="auto")
    assert again.is_continued
    assert again.path == run.path
    assert run.metrics.exists()


def test_a_checkpoint_of_its_own_goes_on_with_the_run(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    again = RunDir.create(tmp_path, "mine", overwrite=False, resume=str(run.checkpoints / "00000003"))
    assert again.is_continued


def test_overwrite_empties_the_folder_of_a_run(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    kept = tmp_path / "kept.txt"
    kept.write_text("x")
    (run.path / "link").symlink_to(kept)
    (run.path / "linked").symlink_to(tmp_path)
    again = RunDir.create(tmp_path, "mine", overwrite=True)
    assert list(again.path.iterdir()) == []
    assert not again.is_continued
    assert kept.read_text() == "x"


@pytest.mark.parametrize("resume", ["never", "auto"])
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("config", [None, "trainer: {name: ppo}\n"])
def test_what_is_no_run_is_left_alone(tmp_path: Path, resume: str, config: str | None, *, overwrite: bool) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter1.tex").write_text("years of work")
    if config is not None:
        (folder / "config.yaml").write_text(config)
    with pytest.raises(RunExists, match="no run of rlcore"):
        RunDir.create(tmp_path, "thesis", overwrite=overwrite, resume=resume)
    assert (folder / "chapter1.tex").read_text() == "years of work"


def test_a_run_that_was_set_aside_gives_way_to_the_one_that_overwrites_it_only(tmp_path: Path) -> None:
    aside = make_run(tmp_path, ".replaced").path
    (tmp_path / "mine").mkdir()
    aside = aside.rename(tmp_path / "mine" / ".replaced")
    for resume in ("never", "auto"):
        with pytest.raises(RunExists, match="left unchanged"):
            RunDir.create(tmp_path, "mine", overwrite=False, resume=resume)
    assert RunDir.create(tmp_path, "mine", overwrite=True).path == tmp_path / "mine"
    assert is_run(aside)
    (aside / "config.yaml").unlink()
    with pytest.raises(RunExists, match="left unchanged"):
        RunDir.create(tmp_path, "mine", overwrite=True)


def test_a_file_of_the_name_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(RunExists, match="left unchanged"):
        RunDir.create(tmp_path, "mine", overwrite=True)
    assert (tmp_path / "mine").read_text() == "x"


def test_overwrite_does_not_delete_what_resume_needs(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    for resume in ("auto", str(run.checkpoints / "00000003")):
        with pytest.raises(ConfigError, match="pass only one"):
            RunDir.create(tmp_path, "mine", overwrite=True, resume=resume)
    assert run.metrics.exists()


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "/abs", "a/b", "a\\b", "a\0b"])
def test_a_name_is_a_plain_folder_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"run\.name = "):
        RunDir.create(tmp_path / "runs", name, overwrite=True)
    assert list(tmp_path.iterdir()) == []


def test_runs_without_a_name_get_one_each(tmp_path: Path) -> None:
    names = [RunDir.create(tmp_path, None, overwrite=False, trainer="rlcore-ppo:ppo").path.name for _ in range(3)]
    assert len(set(names)) == 3
    for name in names:
        assert re.fullmatch(r"rlcore-ppo-ppo-\d{8}-\d{6}(-\d)?", name)


def test_the_config_reads_back_as_options_with_plugins_in_comments(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "mine", overwrite=False)
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

    whole = RunDir.create(tmp_path, "whole", overwrite=False)
    record(whole.path, 1, 9)
    broken = RunDir.create(tmp_path, "broken", overwrite=False)
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
    "line", ['{"step": 1', "nonsense\n", "3\n", '{"loss": 2}\n', '{"step": "1"}\n', '{"step": 1}', "\n", "\udcff\n"]
)
def test_lines_that_say_no_step_go_in_a_rewind(tmp_path: Path, line: str) -> None:
    run = RunDir(tmp_path)
    run.metrics.write_bytes(b'{"step": 1}\n' + line.encode(errors="surrogateescape"))
    run.rewind(5)
    assert run.metrics.read_text() == '{"step": 1}\n'


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
