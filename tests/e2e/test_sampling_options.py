"""Tests of sampling options in whole runs: logit masks, sweeps, and the best value of a sweep."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e_processes import assert_same_run, lines, newest_checkpoint
from e2e_scenarios import WORDS, save_model, train

from rlcore import errors
from rlcore.cli import main
from rlcore.config import load_yaml
from rlcore_testing.small import EOS, LETTERS

MASK = np.zeros((32, 32), dtype=bool)
MASK[:, EOS] = True
for _before in range(29):  # a letter is followed by one of the next three; '?' is a special token without text
    MASK[_before, [(_before + step) % 29 for step in (1, 2, 3)]] = True


def is_allowed(prompt: str, output: str) -> bool:
    ids = [LETTERS.index(letter) for letter in prompt[-1:] + output]
    return all(MASK[one, other] for one, other in pairwise(ids))


@pytest.mark.slow
def test_no_sample_of_a_run_breaks_its_mask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[tuple[str, str]] = []

    def listen(prompts: list[str], outputs: list[str]) -> list[float]:
        seen.extend(zip(prompts, outputs, strict=True))
        return [float(len(output)) for output in outputs]

    changes = {"logit_mask": MASK, "reward_fn": listen, "run": {"steps": 3}, "eval": {"at_end": True}}
    done = train("ppo_plain", tmp_path, "run", changes)
    seen += [(row["prompt"], row["output"]) for row in lines(tmp_path / "run/completions.jsonl")]
    seen += zip(WORDS, done.generate(WORDS, max_new_tokens=20), strict=True)
    assert len(seen) > 60
    assert sum(len(output) for _, output in seen) > 200
    assert all(is_allowed(prompt, output) for prompt, output in seen)
    assert "disagree" not in capsys.readouterr().err
    assert load_yaml(tmp_path / "run/config.yaml")["data"]["logit_mask"] == "<ndarray of 32>"
    free = train("ppo_plain", tmp_path, "free", changes | {"logit_mask": None})
    assert not all(is_allowed(*pair) for pair in zip(WORDS, free.generate(WORDS, max_new_tokens=20), strict=True))


@pytest.mark.slow
def test_a_run_with_a_mask_resumes_exactly_and_not_without_it(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"logit_mask": MASK, "checkpoint": {"every": 1}}
    train("ppo_config", tmp_path, "whole", changes | {"run": {"steps": 4}})
    train("ppo_config", tmp_path, "parts", changes | {"run": {"steps": 2}})
    again = {"run": {"steps": 4, "resume": "auto"}}
    with pytest.raises(errors.ConfigError, match=r"data\.logit_mask was '32 x 32, sha256 \w{16}', is None"):
        train("ppo_config", tmp_path, "parts", changes | again | {"logit_mask": None})
    train("ppo_config", tmp_path, "parts", changes | again)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("form", ["masks:allowed", "mask.npy", "mask.json"])
def test_a_mask_may_be_given_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.chdir(tmp_path)
    save_model(tmp_path / "base")
    np.save(tmp_path / "mask.npy", MASK)
    (tmp_path / "mask.json").write_text(json.dumps(MASK.tolist()))
    (tmp_path / "masks.py").write_text("import numpy\n\n\ndef allowed():\n    return numpy.load('mask.npy')\n")
    (tmp_path / "run.yaml").write_text(
        "trainer: {name: sft, batch_size: 2}\nmodel: {path: base, tokenizer: {path: base, padding_side: left}}\n"
        f"data: {{samples: [[a, bc]], eval_prompts: [a, bc, xyz], logit_mask: '{form}'}}\n"
        "eval: {samples: 20}\nrun: {name: one, steps: 1}\nloggers: []\n"
    )
    for file, name in (("run.yaml", "one"), ("runs/one/config.yaml", "two")):
        assert main(["train", file, f"run.name={name}"]) == 0
        written = load_yaml(tmp_path / f"runs/{name}/config.yaml")
        assert written["data"]["logit_mask"] == form
        assert written["model"]["tokenizer"] == {"path": "base", "padding_side": "left"}
        rows = lines(tmp_path / f"runs/{name}/completions.jsonl")
        assert len(rows) == 60
        assert all(is_allowed(row["prompt"], row["output"]) for row in rows)
    saved = load_yaml(tmp_path / "runs/one/model/tokenizer_config.json")
    assert saved["padding_side"] == "left"


SWEPT = {"every": 1, "at_end": False, "gen": {"temperature": [0.2, 1.5], "top_k": [3, 0]}}
SUFFIXES = [f"@temperature={t}@top_k={k}" for t in (0.2, 1.5) for k in (3, 0)]
JUDGED: dict[str, tuple[str, str, Callable[[list[float]], float]]] = {
    "best of a sweep": ("eval/reward/mean", "max", max),
    "least of a sweep": ("eval/reward/mean", "min", min),
    "one of a sweep": (f"eval/reward/mean{SUFFIXES[2]}", "max", max),
    "another metric of a sweep": ("eval/chars", "min", min),
    "another metric, one of a sweep": (f"eval/chars{SUFFIXES[3]}", "max", max),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", JUDGED)
def test_the_best_checkpoint_of_a_sweep_may_be_chosen_by_any_metric(tmp_path: Path, case: str) -> None:
    metric, mode, pick = JUDGED[case]
    changes = {
        "run": {"steps": 6}, "eval": SWEPT, "trainer": {"optimizer": {"lr": 1e-2}},
        "checkpoint": {"every": 0, "keep_last": 1, "keep_best": 1, "metric": metric, "mode": mode},
    }  # fmt: skip
    train("ppo_config", tmp_path, "run", changes)
    names = [metric] if "@" in metric else [metric + suffix for suffix in SUFFIXES]
    scores = {
        row["step"]: pick([row[name] for name in names])
        for row in lines(tmp_path / "run/metrics.jsonl")
        if names[0] in row
    }
    assert len(scores) == 6
    best = max(step for step, score in scores.items() if score == pick(list(scores.values())))
    kept = {int(path.name): json.loads((path / "manifest.json").read_text())["score"]
            for path in (tmp_path / "run/checkpoints").iterdir()}  # fmt: skip
    assert kept == {step: scores[step] for step in {best, 6}}


def test_the_best_checkpoint_may_be_chosen_by_the_evaluation_loss(tmp_path: Path) -> None:
    changes = {
        "run": {"steps": 4}, "eval": SWEPT,
        "checkpoint": {"every": 0, "keep_last": 1, "keep_best": 1, "metric": "eval/loss", "mode": "min"},
    }  # fmt: skip
    train("sft_config", tmp_path, "run", changes)
    losses = {row["step"]: row["eval/loss"] for row in lines(tmp_path / "run/metrics.jsonl") if "eval/loss" in row}
    best = min(losses, key=lambda step: losses[step])
    assert {int(path.name) for path in (tmp_path / "run/checkpoints").iterdir()} == {best, 4}
    score = json.loads((newest_checkpoint(tmp_path / "run") / "manifest.json").read_text())["score"]
    assert score == losses[4]
