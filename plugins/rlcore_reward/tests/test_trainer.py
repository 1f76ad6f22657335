"""Tests of reward training: what it learns, drops, saves and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import rlcore
from rlcore.errors import DataError, ModelError
from rlcore_testing.small import EOS, make_gpt2, make_llama, make_tokenizer

WORDS = ("good", "fine", "nice", "great", "glad", "best", "love", "joy")
PAIRS = [{"prompt": "it is ", "chosen": word, "rejected": f"{word} not"} for word in WORDS]


def train(folder: Path, samples: Any = PAIRS, model: Any = None, **changes: Any) -> rlcore.Result:
    options = {"name": "reward", "batch_size": 4, "optimizer": {"lr": 1e-2}, **changes.pop("trainer", {})}
    given: dict[str, Any] = {"loggers": [], "run": {"root": str(folder), "steps": 2, **changes.pop("run", {})}}
    tokenizer = changes.pop("tokenizer", None) or make_tokenizer()
    return rlcore.train(
        model or make_gpt2(), trainer=options, samples=samples, tokenizer=tokenizer, **{**given, **changes}
    )


def rows_of(result: rlcore.Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]


def test_held_out_accuracy_rises(tmp_path: Path) -> None:
    held_out = [{"prompt": "it was ", "chosen": word, "rejected": f"{word} not"} for word in ("kind", "calm", "safe")]
    keep = {"keep_best": 1, "metric": "eval/reward/accuracy"}  # as the README writes it
    evaluation = {"at_start": True, "every": 10}
    result = train(tmp_path, eval_samples=held_out, run={"steps": 20}, eval=evaluation, checkpoint=keep)
    evaluations = [row for row in rows_of(result) if "eval/reward/accuracy" in row]
    assert evaluations[-1]["eval/reward/accuracy"] == 1.0
    assert evaluations[-1]["eval/loss"] < 0.2 < evaluations[0]["eval/loss"]
    assert {"eval/reward/margin", "eval/reward/mean", "eval/reward/std", "eval/reward/min", "eval/reward/max"} <= {
        *evaluations[-1]
    }


@pytest.mark.parametrize("pad_is_eos", [False, True])
@pytest.mark.parametrize("peft", [None, {"type": "lora", "r": 2}])
def test_the_saved_model_scores_the_same_in_plain_transformers(tmp_path: Path, peft: Any, pad_is_eos: bool) -> None:
    """Heads are lost or drawn anew on saving or loading, above all with LoRA.

    TRL #1379, transformers #26160, peft #577, sentence-transformers #3980, OpenRLHF #1342.
    """
    model: dict[str, Any] = {"path": make_llama(), **({"peft": peft} if peft else {})}
    result = train(tmp_path, model=model, tokenizer=make_tokenizer(pad_is_eos=pad_is_eos))
    pairs = result.run.samples[:3]
    samples = [sample for pair in pairs for sample in (pair.chosen, pair.rejected)]
    rows = [list(sample.tokens) for sample in samples]
    assert all(row[-1] == EOS for row in rows)
    batch = rlcore.Trajectories.stack(rows, [[False] * len(row) for row in rows])
    plain = AutoModelForSequenceClassification.from_pretrained(result.run_dir / "model")
    tokenizer = AutoTokenizer.from_pretrained(result.run_dir / "model")
    with torch.no_grad():
        expected = result.policy.score(batch)
        alone = torch.stack([plain(torch.tensor([row])).logits[0, 0] for row in rows])
        padded = {
            side: plain(**tokenizer.pad({"input_ids": rows}, padding_side=side, return_tensors="pt")).logits[:, 0]
            for side in ("left", "right")
        }
    for seen in (alone, *padded.values()):  # rotary positions are relative, so that left padding changes nothing
        torch.testing.assert_close(seen, expected, atol=1e-5, rtol=0)


def test_the_metrics_of_a_step_are_those_of_its_pairs(tmp_path: Path) -> None:
    result = train(tmp_path, trainer={"batch_size": 8, "optimizer": {"lr": 1e-12}}, run={"steps": 1})
    with torch.no_grad():
        scores = torch.tensor(
            [
                [
                    float(result.policy.score(rlcore.Trajectories.stack([each.tokens], [each.action_mask])))
                    for each in pair
                ]
                for pair in ((pair.chosen, pair.rejected) for pair in result.run.samples)
            ]
        )
    (row,) = [row for row in rows_of(result) if "loss/total" in row]
    chosen, rejected = scores.unbind(1)
    expected = {
        "reward/accuracy": (chosen > rejected).float().mean(), "reward/margin": (chosen - rejected).mean(),
        "reward/mean": scores.mean(), "reward/std": scores.std(correction=0), "reward/min": scores.min(),
        "reward/max": scores.max(), "loss/total": -torch.nn.functional.logsigmoid(chosen - rejected).mean(),
    }  # fmt: skip
    for name, value in expected.items():
        assert row[name] == pytest.approx(float(value), abs=1e-4), name


def test_ties_are_dropped_and_counted_or_learned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [*PAIRS[:4], *({**row, "label": "tie"} for row in PAIRS[4:])]
    dropping = train(tmp_path, rows, run={"name": "drop"})
    assert "ties=4" in capsys.readouterr().err
    assert dropping.metrics["progress/epoch"] == 2  # 2 steps of 4 pairs: the ties are in none
    learning = train(tmp_path, rows, run={"name": "learn", "steps": 25}, trainer={"ties": "learn", "batch_size": 8})
    metrics = rows_of(learning)[-1]
    assert metrics["reward/accuracy"] == 1.0  # of the four pairs that have a better answer
    margins = [
        abs(float((result := learning.policy).score(_batch(pair.chosen)) - result.score(_batch(pair.rejected))))
        for pair in learning.run.samples
        if pair.is_tie
    ]
    assert max(margins) < metrics["reward/margin"]


def _batch(sample: Any) -> rlcore.Trajectories:
    return rlcore.Trajectories.stack([sample.tokens], [sample.action_mask])


def test_margins_of_preference_rows_are_used_in_the_loss(tmp_path: Path) -> None:
    still = {"optimizer": {"lr": 1e-12}, "batch_size": 8}
    plain = train(tmp_path, trainer=still, run={"name": "plain", "steps": 1})
    wide = train(tmp_path, [{**row, "margin": 5.0} for row in PAIRS], trainer=still, run={"name": "wide", "steps": 1})
    assert rows_of(wide)[0]["loss/total"] > rows_of(plain)[0]["loss/total"] + 3


def test_pairs_with_empty_equal_or_long_answers_are_dropped_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A long answer is never cut where the score is read."""
    odd = [
        {"prompt": "a", "chosen": "", "rejected": "b"}, {"prompt": "a", "chosen": "same", "rejected": "same"},
        {"prompt": "a", "chosen": "b" * 40, "rejected": "c"},
    ]  # fmt: skip
    train(tmp_path, [*PAIRS, *odd], trainer={"max_length": 30})
    seen = capsys.readouterr().err
    assert "empty_answer=1" in seen
    assert "equal_answers=1" in seen
    assert "longer_than_max_length=1" in seen


def test_pairs_longer_than_the_context_are_dropped_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The context of this model is 64 tokens, less than `max_length`."""
    result = train(tmp_path, [*PAIRS, {"prompt": "a", "chosen": "b" * 70, "rejected": "c"}])
    assert "truncated=1" in capsys.readouterr().err
    assert result.metrics["data/pairs"] == 4
    assert result.metrics["progress/epoch"] == 1  # 2 steps of 4 pairs: the long one is in none


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"prompt": "a", "rejected": "b"}], "samples\\[0\\]: has no key 'chosen'"),
        ([{"prompt": "a", "chosen": "b", "rejected": "b"}], "none of the 1 pairs can be learned from"),
        ([{"prompt": "a", "chosen": "b", "rejected": "c", "label": "tie"}], "no pair is left \\(ties: 1\\)"),
    ],
)
def test_malformed_preference_rows_are_refused(tmp_path: Path, rows: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        train(tmp_path, rows)


def test_a_reward_model_refuses_other_pipelines_and_architectures(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"leave data.sample_pipeline out, or set it to preferences"):
        train(tmp_path, [["a", "b"]], data={"sample_pipeline": "samples"})
    with pytest.raises(ModelError, match=r"set model.architecture=sequence_scorer"):
        train(tmp_path, model={"path": make_gpt2(), "architecture": "causal_lm"})
    with pytest.raises(ModelError, match="leave it out, or name another trainer"):
        train(
            tmp_path,
            [["a", "b"]],
            trainer={"name": "sft"},
            model={"path": make_gpt2(), "architecture": "sequence_scorer"},
        )


def test_prompts_of_a_reward_model_are_unused_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = train(tmp_path, eval_prompts=["a"])
    assert "a run that trains a scorer samples nothing" in capsys.readouterr().err
    with pytest.raises(rlcore.errors.ConfigError, match="generates no text"):
        result.generate("a")


def test_the_closing_summary_names_the_class_that_loads_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, loggers=["console"])
    assert "transformers.AutoModelForSequenceClassification.from_pretrained" in "".join(
        capsys.readouterr().out.split("\n")
    )


def test_an_adapter_on_a_model_in_memory_resumes_exactly(tmp_path: Path) -> None:
    model = {"peft": {"type": "lora", "r": 2}}
    keep = {"checkpoint": {"every": 1}}
    whole = train(tmp_path, model={"path": make_gpt2(), **model}, run={"name": "whole", "steps": 4}, **keep)
    train(tmp_path, model={"path": make_gpt2(), **model}, run={"name": "parts", "steps": 2}, **keep)
    parts = train(
        tmp_path, model={"path": make_gpt2(), **model}, run={"name": "parts", "steps": 4, "resume": "auto"}, **keep
    )
    for one, other in zip(whole.policy.module.parameters(), parts.policy.module.parameters(), strict=True):
        assert torch.equal(one, other)


def test_bf16_training_learns_from_all_rows(tmp_path: Path) -> None:
    result = train(tmp_path, model={"path": make_gpt2().config, "dtype": "bfloat16"}, run={"steps": 2})
    assert result.metrics["loss/total"] < 10
