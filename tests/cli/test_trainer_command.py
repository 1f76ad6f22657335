"""Tests of short commands and of the files that `rlcore init` writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlcore.cli import main
from rlcore.config import describe, load_yaml
from rlcore.training import api
from rlcore_ppo.config import PPOConfig
from rlcore_transformers.models.model_options import CausalLMConfig


def test_a_short_command_sets_the_options_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    monkeypatch.setattr(api, "train_from_config", lambda values, where: taken.append((values, where)))
    words = ["--model", "gpt2", "--data", "a.txt", "--clip", "0.1", "--trainer.epochs", "2", "--optimizer.lr", "1e-4"]
    words += ["--data.reward_fn", "mine:score", "--model.peft", "{type: lora, r: 8}"]
    assert main(["ppo", *words, "--steps", "3", "--gen.top_k", "5", "model.dtype=auto"]) == 0
    assert taken == [
        (
            {
                "trainer": {"name": "rlcore-ppo:ppo", "clip": 0.1, "epochs": 2, "optimizer": {"lr": 1e-4}},
                "model": {"path": "gpt2", "dtype": "auto", "peft": {"type": "lora", "r": 8}},
                "data": {"prompts": "a.txt", "reward_fn": "mine:score"},
                "run": {"steps": 3}, "gen": {"top_k": 5},
            },
            "rlcore ppo",
        )
    ]  # fmt: skip


def test_a_written_file_shows_every_option_and_leaves_data_to_fill_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "ppo"]) == 0
    text = (tmp_path / "ppo.yaml").read_text(encoding="utf-8")
    values = {name: part for name, part in load_yaml(tmp_path / "ppo.yaml").items() if part}
    assert values == {
        "model": {"path": "MODEL"}, "trainer": {"name": "ppo"},
        "data": {"prompts": "PROMPTS", "reward_fn": "REWARD_FN"},
    }  # fmt: skip
    assert all(f" {row.path.rpartition('.')[2]}: " in text and row.meaning in text for row in describe(PPOConfig))
    assert all(f" {row.path.rpartition('.')[2]}: " in text and row.meaning in text for row in describe(CausalLMConfig))
    assert main(["init", "ppo"]) == 1
    assert "ppo.yaml: exists" in capsys.readouterr().err


def test_an_unknown_option_of_a_short_command_names_the_option_to_use(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as left:
        main(["sft", "--learning_rate", "1e-4", "--stepz=3", "--columns", "{}"])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert "rlcore sft: error: no such option --learning_rate: use trainer.optimizer.lr; no such option --stepz" in said
    assert "no such option --columns: use --data.columns" in said


@pytest.mark.parametrize(
    ("words", "written"),
    [
        (["--trainer.beta", ".2"], "trainer.beta=.2"),
        (
            ["a.b=1", "--trainer.optimizer.lr=1e-5", "--eval.at_start", "true"],
            "trainer.optimizer.lr=1e-5 eval.at_start=true",
        ),
        (["--run.hub_token", "hf_abc"], "run.hub_token=..."),
        (["--data.prompts"], "data.prompts=..."),
    ],
)
def test_an_option_with_dashes_is_shown_as_an_override(
    words: list[str], written: str, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit):
        main(["train", "x.yaml", *words])
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith(f"; write options of the configuration as {written}")
    assert "hf_abc" not in last


def test_the_option_lr_sets_the_learning_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    monkeypatch.setattr(api, "train_from_config", lambda values, where: taken.append(values))
    assert main(["sft", "--lr", "0.5", "--model", "gpt2", "--data", "a.txt"]) == 0
    assert taken[0]["trainer"] == {"name": "rlcore-sft:sft", "optimizer": {"lr": 0.5}}


def test_missing_inputs_are_named_by_their_arguments(capsys: pytest.CaptureFixture) -> None:
    assert main(["sft"]) == 1
    assert capsys.readouterr().err == (
        "InputsError: trainer 'sft' needs --model MODEL and --data DATA (rlcore sft --help)\n"
    )
    assert main(["ppo", "--model", "gpt2", "data.prompts=a.txt"]) == 1
    assert "needs --data.reward_fn REWARD_FN (" in capsys.readouterr().err


def test_arguments_of_a_short_command_are_checked_before_anything_heavy_is_imported() -> None:
    code = (
        "import sys\nfrom rlcore.cli import main\ntry: main(['ppo', '--stepz', '3'])\n"
        "except SystemExit as left: assert left.code == 2\n"
        "sys.exit(', '.join({'torch', 'transformers', 'datasets', 'accelerate'} & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "no such option --stepz" in done.stderr
