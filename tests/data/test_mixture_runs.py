from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import rlcore
from rlcore.errors import CheckpointError
from rlcore_testing.rig.isolate import call_on_two_ranks
from rlcore_testing.small import make_gpt2, make_tokenizer

SUMS = [{"prompt": a, "output": b} for a, b in ("ab", "cd", "ef", "gh", "ij")]
WORDS = [{"prompt": a, "output": b} for a, b in ("kl", "mn", "op")]
MIXTURE = [{"path": SUMS, "name": "sums", "weight": {0: 3, 6: 0}}, {"path": WORDS, "name": "words", "weight": 1}]
PAIRS = [
    {"path": [{"prompt": "a", "chosen": x, "rejected": "z"} for x in "bcd"], "name": "one", "weight": 1},
    {"path": [{"prompt": "e", "chosen": x, "rejected": "z"} for x in "fg"], "name": "two", "weight": 2},
]
PROMPTS = [{"path": ["ab", "cd", "ef"], "name": "sums", "weight": 2}, {"path": ["kl"], "name": "words", "weight": 1}]


def by_first_letter(prompts: list[str], outputs: list[str]) -> list[float]:
    """Return a number for each output that tells the source of its prompt: 1 to 1.4 for words, below 0.5 for sums."""
    return [(prompt >= "k") + len(output) / 20 for prompt, output in zip(prompts, outputs, strict=True)]


STEADY = {"lr": 1e-2, "eps": 1e-3}
"""Options with which Adam does not amplify rounding errors."""


def train(root: Path, name: str, *, trainer: Any, steps: int = 6, run: Any = None, **inputs: Any) -> Any:
    torch.manual_seed(0)
    return rlcore.train(
        make_gpt2(), tokenizer=make_tokenizer(), trainer={"optimizer": STEADY, **trainer}, loggers=["jsonl"],
        run={"steps": steps, "root": str(root), "name": name, **(run or {})}, checkpoint={"every": 2}, **inputs,
    )  # fmt: skip


def metrics_of(root: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root / name / "metrics.jsonl").read_text().splitlines()]


GEN = {"max_new_tokens": 4}
CASES = {
    "sft": {"trainer": {"name": "sft", "batch_size": 4}, "samples": MIXTURE},
    "dpo": {"trainer": {"name": "dpo", "batch_size": 3}, "samples": PAIRS},
    "kto": {"trainer": {"name": "dpo", "loss": "kto", "batch_size": 4}, "samples": PAIRS},
    "reward": {"trainer": {"name": "reward", "batch_size": 3}, "samples": PAIRS},
    "ppo": {
        "trainer": {"name": "ppo", "rollouts": 4, "epochs": 1}, "prompts": PROMPTS, "reward_fn": by_first_letter,
        "gen": GEN,
    },
    "grpo": {
        "trainer": {"name": "grpo", "rollouts": 6, "num_generations": 2}, "prompts": PROMPTS,
        "reward_fn": by_first_letter, "gen": GEN,
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_run_on_a_mixture_that_is_resumed_in_mid_epoch_equals_one_without_interruption(tmp_path, case):
    whole = train(tmp_path, "whole", **CASES[case])
    train(tmp_path, "parts", steps=4, **CASES[case])
    parts = train(tmp_path, "parts", run={"resume": "auto"}, **CASES[case])
    learners = whole.run.learner.module, parts.run.learner.module
    for one, other in zip(*(each.parameters() for each in learners), strict=True):
        assert torch.equal(one, other)
    names = ("data/share/", "data/epoch/", "reward/mean", "loss/")
    expected, found = (
        [
            {key: value for key, value in row.items() if key.startswith(names)}
            for row in metrics_of(tmp_path, name)
            if any(key.startswith("data/share/") for key in row)  # and not an evaluation
        ]
        for name in ("whole", "parts")
    )
    assert len(expected) == 6
    assert found == expected


@pytest.mark.parametrize("case", ["sft", "dpo"])
def test_a_run_on_a_weighted_mixture_is_not_resumed_with_the_same_rows_in_one_list(tmp_path, case):
    given = CASES[case]
    train(tmp_path, "run", steps=2, **given)
    whole = [row for source in given["samples"] for row in source["path"]]
    with pytest.raises(CheckpointError, match="with weighted prompts or samples, now there are"):
        train(tmp_path, "run", run={"resume": "auto"}, **{**given, "samples": whole})


def test_a_streamed_mixture_is_resumed_exactly(tmp_path):
    for name, rows in (("sums", SUMS), ("words", WORDS)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = [{"path": str(tmp_path / "sums.jsonl"), "weight": 3}, {"path": str(tmp_path / "words.jsonl"), "weight": 1}]
    case = {**CASES["sft"], "samples": files, "data": {"streaming": True, "shuffle_buffer": 2}}
    whole = train(tmp_path, "whole", **case)
    train(tmp_path, "parts", steps=4, **case)
    parts = train(tmp_path, "parts", run={"resume": "auto"}, **case)
    for one, other in zip(whole.policy.module.parameters(), parts.policy.module.parameters(), strict=True):
        assert torch.equal(one, other)
    assert metrics_of(tmp_path, "parts")[-1]["data/share/sums"] == metrics_of(tmp_path, "whole")[-1]["data/share/sums"]


def test_the_rewards_of_each_source_are_the_means_over_its_rollouts(tmp_path):
    given = {**CASES["grpo"], "eval": {"every": 2}, "run": {"rollouts": "all"}}
    train(tmp_path, "run", **given)
    rows = [json.loads(line) for line in (tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()]
    steps = [row for row in metrics_of(tmp_path, "run") if "reward/mean" in row]
    assert len(steps) == 6
    for step in steps:
        for source, starts in (("sums", "ace"), ("words", "k")):
            own = [row["reward"] for row in rows if row["step"] == step["step"] and row["prompt"][0] in starts]
            assert len(own) / 6 == step[f"data/share/{source}"]
            assert {row["source"] for row in rows if row["prompt"][0] in starts} == {source}
            if own:
                assert step[f"reward/mean/{source}"] == pytest.approx(sum(own) / len(own), rel=1e-6)
            else:
                assert f"reward/mean/{source}" not in step
    completions = [json.loads(line) for line in (tmp_path / "run" / "completions.jsonl").read_text().splitlines()]
    evaluated = next(row for row in metrics_of(tmp_path, "run") if "eval/reward/mean" in row)
    own = [row for row in completions if row["step"] == evaluated["step"]]
    assert len(own) == 4
    for source in ("sums", "words"):
        part = [row for row in own if row["source"] == source]
        assert evaluated[f"eval/reward/mean/{source}"] == pytest.approx(sum(row["reward"] for row in part) / len(part))
        lengths = [row["length"] for row in part]
        assert evaluated[f"eval/response/length_mean/{source}"] == pytest.approx(sum(lengths) / len(lengths))


def test_the_validation_loss_of_each_source_is_that_of_its_rows_alone(tmp_path):
    held_out = [{"path": SUMS[:3], "name": "sums"}, {"path": WORDS[:2], "name": "words"}]
    case = {**CASES["sft"], "steps": 1, "eval": {"at_start": True}}
    train(tmp_path, "both", eval_samples=held_out, **case)
    found = metrics_of(tmp_path, "both")[0]
    alone = {}
    for source in held_out:
        train(tmp_path, source["name"], eval_samples=source["path"], **case)
        alone[source["name"]] = metrics_of(tmp_path, source["name"])[0]["eval/loss"]
        assert found[f"eval/loss/{source['name']}"] == pytest.approx(alone[source["name"]], rel=1e-5)
    whole = (6 * alone["sums"] + 4 * alone["words"]) / 10  # two tokens of each row are in the loss, EOS among them
    assert found["eval/loss"] == pytest.approx(whole, rel=1e-5)


STEPS = [{"prompt": a, "completions": ["b", "cd"], "labels": [True, k % 2 == 0]} for k, a in enumerate("abcde")]
ANSWERS = [
    [{"prompt": "a", "chosen": x, "rejected": "zz"} for x in "bcd"], [{"prompt": "e", "chosen": "fg", "rejected": "h"}],
]  # fmt: skip
HELD_OUT = {"dpo": ANSWERS, "kto": ANSWERS, "reward": ANSWERS, "process": [STEPS[:3], STEPS[3:]]}
LEARN = {**CASES, "process": {"trainer": {"name": "process_reward", "batch_size": 2}, "samples": STEPS}}


@pytest.mark.slow
@pytest.mark.parametrize("case", HELD_OUT)
def test_the_metrics_of_held_out_rows_of_each_source_are_those_of_its_rows_alone(tmp_path, case):
    given = {**LEARN[case], "steps": 1, "eval": {"at_start": True}}
    rows = dict(zip(("one", "two"), HELD_OUT[case], strict=True))
    train(tmp_path, "both", eval_samples=[{"path": each, "name": name} for name, each in rows.items()], **given)
    found = metrics_of(tmp_path, "both")[0]
    for name, each in rows.items():
        train(tmp_path, name, eval_samples=each, **given)
        alone = {key: value for key, value in metrics_of(tmp_path, name)[0].items() if key.startswith("eval/")}
        del alone["eval/time_s"], alone["eval/data/held_out"]
        assert len(alone) >= 4
        assert {key: found[f"{key}/{name}"] for key in alone} == pytest.approx(alone, rel=1e-4, abs=1e-6)
    flat = [row for each in rows.values() for row in each]
    train(tmp_path, "flat", eval_samples=flat, **given)
    whole = metrics_of(tmp_path, "flat")[0]
    names = [key for key in whole if key.startswith("eval/") and key not in {"eval/time_s", "eval/data/held_out"}]
    assert {key: found[key] for key in names} == pytest.approx({key: whole[key] for key in names}, rel=1e-4, abs=1e-6)


def learn_on_ranks(root: str, cases: list[str]) -> None:
    for case in cases:
        train(Path(root), f"{case}-two", **CASES[case], steps=3)


@pytest.mark.nightly
def test_two_processes_take_the_rows_of_one(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    cases = ["sft", "grpo"]
    call_on_two_ranks("test_mixture_runs:learn_on_ranks", {"root": str(tmp_path), "cases": cases}, what="two ranks")
    for case in cases:
        train(tmp_path, f"{case}-one", **CASES[case], steps=3)
        for one, two in zip(metrics_of(tmp_path, f"{case}-one"), metrics_of(tmp_path, f"{case}-two"), strict=True):
            names = [name for name in one if name.startswith(("data/share", "data/epoch", "reward/mean", "loss/total"))]
            assert len(names) >= 4 or "lr" not in one  # as of an evaluation
            assert {name: two[name] for name in names} == pytest.approx({name: one[name] for name in names}, rel=1e-4)


def test_functions_are_checked_with_the_columns_of_all_sources_before_the_run(tmp_path):
    def needs_answer(outputs: list[str], answer: list[str]) -> list[float]:
        return [float(one == other) for one, other in zip(outputs, answer, strict=True)]

    rows = [{"prompt": "a", "answer": "b"}]
    given = {**CASES["ppo"], "steps": 1, "reward_fn": needs_answer}
    train(tmp_path, "fine", **{**given, "prompts": [{"path": ["k"], "name": "x"}, {"path": rows, "name": "y"}]})
    with pytest.raises(rlcore.errors.RewardError, match="answer"):
        train(tmp_path, "wrong", **{**given, "prompts": [{"path": ["k"], "name": "x"}, {"path": ["l"], "name": "y"}]})
