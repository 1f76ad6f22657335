"""The examples of the documentation learn, and run in a short form."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "docs" / "examples" / "shapes.py"


def accuracies(
    options: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> dict[str, float]:
    """Run the example, and return its accuracies after SFT and after GRPO."""
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--out", str(folder), *options])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    printed = capsys.readouterr().out
    return {line.split()[1][:-1]: float(line.split()[2]) for line in printed.splitlines() if line.startswith("after")}


@pytest.mark.slow
def test_the_example_runs_and_sft_learns_the_colours_of_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    after = accuracies(["--imitation-steps", "110", "--steps", "2"], tmp_path, monkeypatch, capsys)
    assert after["SFT"] > 0.5
    assert after["GRPO"] > 0.5


@pytest.mark.nightly
def test_grpo_learns_the_colours_that_sft_did_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example as it is, with seed 0."""
    after = accuracies(["--seed", "0"], tmp_path, monkeypatch, capsys)
    assert after["GRPO"] >= 0.9
    assert after["GRPO"] > after["SFT"]


@pytest.mark.slow
def test_the_example_of_reward_models_trains_a_policy_with_its_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Few steps, so that accuracies are near chance. Rewards are scores of a model, not 1 and 0 as in `shapes.py`."""
    steps = ["--reward-steps", "20", "--imitation-steps", "2", "--steps", "1"]
    monkeypatch.setattr(sys, "argv", ["shapes_reward.py", "--out", str(tmp_path), *steps])
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    runpy.run_path(str(SCRIPT.with_name("shapes_reward.py")), run_name="__main__")
    printed = capsys.readouterr().out
    assert re.search(r"reward model: accuracy on pairs 0\.\d{3} -> 0\.\d{3}", printed)
    assert re.search(r"^after SFT: 0\.\d{3}$", printed, re.MULTILINE)
    assert re.search(r"^after GRPO: 0\.\d{3} \(chance: 0\.25\)$", printed, re.MULTILINE)
    lines = (tmp_path / "shapes-judged" / "rollouts.jsonl").read_text().splitlines()
    rewards = {json.loads(line)["reward"] for line in lines}
    assert len(rewards) > 1
    assert not rewards & {0.0, 1.0}
    assert (tmp_path / "shapes-judge" / "model" / "heads.safetensors").exists()
