"""Tests of evaluation: sampling, metric names, scores, and the rows of several ranks."""

from __future__ import annotations

import copy
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from evaluation_runs import GEN, Make, sft_run

import rlcore
from rlcore.config import evolve
from rlcore.sampling import sample
from rlcore.training.evaluate import check_evaluation, evaluate
from rlcore.training.run import Run
from rlcore_ilql.config import q_heads
from rlcore_testing.small import make_gpt2, make_tokenizer


def sweep(run: Run, **gen: Any) -> None:
    run.config = evolve(run.config, eval=evolve(run.config.eval, gen=gen))


def steer_to_a(run: Run) -> None:
    policy: Any = run.build(value_head=True, heads=q_heads(2))
    with torch.no_grad():
        for target in policy.module.q_heads.targets:
            target.fall.bias[0] += 1.0


def test_every_combination_is_evaluated_and_named(make_trainer: Make) -> None:
    run = sft_run(make_trainer)
    steer_to_a(run)
    sweep(run, beta=[0, 100], temperature=[0.5, 1])
    metrics, rows = evaluate(run)
    for suffix, at_least in {"@beta=0": 0.0, "@beta=100": 1.0}.items():
        for name in ("@temperature=0.5", "@temperature=1"):
            assert metrics[f"eval/optimality{suffix}{name}"] >= at_least
            assert f"eval/response/length_mean{suffix}{name}" in metrics
    assert metrics["eval/optimality@beta=0@temperature=1"] < 0.5
    assert [row["sampling"] for row in rows[::2]] == [
        "beta=0@temperature=0.5", "beta=0@temperature=1", "beta=100@temperature=0.5", "beta=100@temperature=1",
    ]  # fmt: skip
    assert [row["output"] for row in rows[4:]] == ["aaaa"] * 4
    assert len(rows) == 8


def test_every_evaluation_samples_the_set_number_of_completions_with_the_same_seeds(make_trainer: Make) -> None:
    def reward_fn(outputs: list[str]) -> list[float]:
        return [float(sum(map(ord, output))) for output in outputs]

    inputs = {"eval_prompts": ["a", "bc", "d"], "reward_fn": reward_fn}
    run = sft_run(make_trainer, inputs=inputs, eval={"samples": 2, "batch_size": 4})
    metrics, rows = evaluate(run)
    assert [row["prompt"] for row in rows] == ["a", "a", "bc", "bc", "d", "d"]
    rewards = reward_fn([row["output"] for row in rows])
    assert len(set(rewards)) > 3
    assert metrics["eval/reward/mean"] == pytest.approx(statistics.mean(rewards))
    assert metrics["eval/reward/std"] == pytest.approx(statistics.pstdev(rewards))
    run.progress.step = 7
    torch.manual_seed(5)
    assert evaluate(run)[1] == rows


def test_a_policy_whose_values_come_from_elsewhere_can_be_swept(make_trainer: Make) -> None:
    run = sft_run(make_trainer, model={"value_layers": 1})
    run.build(value_head=True, heads=q_heads(2))
    sweep(run, beta=[0, 4])
    check_evaluation(run)
    metrics, _ = evaluate(run)
    assert {"eval/response/length_mean@beta=0", "eval/response/length_mean@beta=4"} <= metrics.keys()


def test_evaluation_samples_like_training_except_for_its_own_options(make_trainer: Make) -> None:
    mask = torch.ones(32, 32).bool()
    mask[:, 1] = False
    sections = {
        "gen": {"max_new_tokens": 9, "temperature": 0.8, "stop_sequences": ["e"], "top_k": 7},
        "eval": {"gen": {"temperature": 0.0, "stop_sequences": ["h", "i"], "max_new_tokens": 5}},
    }
    inputs = {"prompts": ["a", "bc"], "reward_fn": lambda outputs: [0.0] * len(outputs), "logit_mask": mask.tolist()}
    trainer = make_trainer("ppo", make_gpt2(), sections=sections, inputs=inputs, rollouts=4, batch_size=4)
    seen: list[tuple[Any, ...]] = []

    def noting(policy: Any, prompts: Any, sampling: Any, *, generator: Any, logit_mask: Any) -> Any:
        assert not torch.is_grad_enabled()
        stops = tuple(sampling.stop_sequences)
        seen.append((sampling.max_new_tokens, sampling.temperature, stops, sampling.top_k, logit_mask[:, 1].any()))
        return sample(policy, prompts, sampling, generator=generator, logit_mask=logit_mask)

    trainer.run.sampling.sampler = noting
    trainer.rollout()
    _, rows = evaluate(trainer.run)
    assert seen == [(9, 0.8, ("e",), 7, False), (5, 0.0, ("h", "i"), 7, False)]
    assert not any(set(row["output"]) & set("bhi") for row in rows)
    assert not trainer.run.sampling.is_exact


def test_a_response_without_a_score_counts_in_no_mean(make_trainer: Make) -> None:
    """Of the prompts a, bc and d, one function applies to bc and d, the other to d alone."""
    table = {"a": (None, None), "bc": (1.0, None), "d": (3.0, 4.0)}
    rewards = {
        name: lambda prompts, outputs, k=k: [table[prompt][k] for prompt in prompts]
        for k, name in enumerate(("one", "two"))
    }
    inputs = {"prompts": list(table), "reward_fn": rewards}
    trainer = make_trainer("ppo", make_gpt2(), sections={"gen": GEN}, inputs=inputs, rollouts=6, batch_size=6)
    metrics, rows = evaluate(trainer.run)
    assert [row["reward"] for row in rows] == [None, 1.0, 7.0]
    assert {name: metrics[f"eval/reward/{name}"] for name in ("mean", "std", "one", "two")} == {
        "mean": 4.0, "std": 3.0, "one": 2.0, "two": 4.0,
    }  # fmt: skip
    rolled = trainer.rollout()
    assert {name: rolled[f"reward/{name}"] for name in ("mean", "min", "one", "two", "unscored")} == {
        "mean": 4.0, "min": 1.0, "one": 2.0, "two": 4.0, "unscored": 2.0,
    }  # fmt: skip
    assert sorted(trainer.store.take()["scores"].tolist()) == [1.0, 1.0, 7.0, 7.0]


def test_the_rows_of_all_ranks_come_in_the_order_of_the_prompts(make_trainer: Make) -> None:
    run = sft_run(make_trainer, inputs={"eval_prompts": ["a", "bc", "d", "ef", "g"]}, eval={"batch_size": 2})
    one, rows_of_one = copy.copy(run.ranks), list[Any]()
    one.rank, one.world = 1, 2
    one.gather_to_main = lambda rows: rows_of_one.extend(rows) or []  # type: ignore[method-assign]
    one.on_main = lambda _: {}  # type: ignore[method-assign]
    run.ranks = one
    evaluate(run)
    main = copy.copy(one)
    main.rank = 0
    del main.on_main
    main.gather_to_main = lambda rows: [*rows, *rows_of_one]  # type: ignore[method-assign]
    run.ranks = main
    _, rows = evaluate(run)
    assert [row["prompt"] for row in rows] == ["a", "bc", "d", "ef", "g"]


@pytest.mark.parametrize("world", [2, 3, 7])
def test_completions_of_an_evaluation_are_those_of_a_single_process(make_trainer: Make, world: int) -> None:
    """The seed of a completion belongs to its place among those of all ranks; some of seven ranks have none."""
    eval_ = {"batch_size": 2, "samples": 2, "gen": {"max_new_tokens": 5, "temperature": 1.0}}
    inputs = {"eval_prompts": ["a", "bc", "a"]}
    alone = [row["output"] for row in evaluate(sft_run(make_trainer, inputs=inputs, eval=eval_))[1]]
    assert len(set(alone)) == 6  # also of one prompt that occurs four times
    run, rows = sft_run(make_trainer, inputs=inputs, eval=eval_), list[Any]()
    for rank in range(world):
        one = copy.copy(run.ranks)
        one.rank, one.world = rank, world
        one.gather_to_main = lambda own: rows.extend(own) or []  # type: ignore[method-assign]
        one.on_main = lambda _: {}  # type: ignore[method-assign]
        run.ranks = one
        evaluate(run)
    assert [row["output"] for _, row in sorted(rows, key=lambda pair: pair[0])] == alone


def test_a_metric_of_none_is_left_out_of_the_mean(make_trainer: Make) -> None:
    run = sft_run(make_trainer, inputs={"metric_fn": lambda outputs: {"some": [None, 3.0], "no": [None, None]}})
    metrics, rows = evaluate(run)
    assert metrics["eval/some"] == 3.0
    assert "eval/no" not in metrics
    assert [row["some"] for row in rows] == [None, 3.0]


def test_no_score_is_a_count_and_no_number_in_evaluations_and_ends_no_run_that_ranks_checkpoints(
    tmp_path: Path,
) -> None:
    """The checkpoint of an evaluation without scores is not among the best."""
    scores: dict[str, Any] = {"first": lambda i: None, "second": lambda i: None if i else 3.0}

    def reward(outputs: Sequence[str]) -> list[float | None]:
        return [scores["second" if steps else "first"](i) for i in range(len(outputs))]

    steps: list[int] = []

    class Counts:
        def on_evaluate(self, run: Run, metrics: Any) -> None:
            steps.append(run.step)
            seen.append({name: value for name, value in metrics.items() if name.startswith("eval/reward")})

    seen: list[dict[str, float]] = []
    result = rlcore.train(
        make_gpt2(), trainer="sft", samples=[["a", "b"], ["c", "d"]], eval_prompts=["a", "b"], reward_fn=reward,
        tokenizer=make_tokenizer(), gen={"max_new_tokens": 2}, eval={"every": 1}, checkpoint={"keep_best": 1},
        loggers=[], observers=[Counts()], run={"root": str(tmp_path), "steps": 2, "report": False},
    )  # fmt: skip
    assert seen == [
        {"eval/reward/unscored": 2.0},
        {"eval/reward/unscored": 1.0, "eval/reward/mean": 3.0, "eval/reward/std": 0.0},
    ]
    manifests = [result.run_dir / "checkpoints" / f"0000000{step}" / "manifest.json" for step in (1, 2)]
    assert [json.loads(each.read_text())["score"] for each in manifests] == [None, 3.0]
