"""Tests of evaluation: sampling, metric names, and checks before a run begins."""

from __future__ import annotations

import copy
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import rlcore
from rlcore.config import evolve
from rlcore.errors import ConfigError, DataError
from rlcore.sampling import sample
from rlcore.training.evaluate import check_evaluation, evaluate
from rlcore.training.run import Run
from rlcore_ilql.config import q_heads
from rlcore_testing.small import EOS, make_gpt2, make_tokenizer

Make = Callable[..., Any]
GEN = {"max_new_tokens": 4}


def share_of_a(outputs: Sequence[str]) -> dict[str, list[float]]:
    return {"optimality": [output.count("a") / max(len(output), 1) for output in outputs]}


def sft_run(make_trainer: Make, **sections: Any) -> Run:
    inputs = {"samples": ["ab", "cd"], "eval_prompts": ["a", "bc"], "metric_fn": share_of_a}
    inputs |= sections.pop("inputs", {})
    run: Run = make_trainer("sft", make_gpt2(), sections={"gen": GEN, **sections}, inputs=inputs).run
    return run


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


def test_a_policy_without_q_heads_cannot_be_swept_over_beta(make_trainer: Make) -> None:
    with pytest.raises(ConfigError, match=r"eval.gen.beta = 4: .*choose a trainer that gives its policy Q-heads"):
        sft_run(make_trainer, eval={"gen": {"beta": [0, 4]}})
    with pytest.raises(ConfigError, match=r"^gen.beta = -1: .*this policy has none"):
        sft_run(make_trainer, gen={"beta": -1})
    sft_run(make_trainer, eval={"gen": {"beta": 0}})


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


def test_log_probs_of_a_sampler_are_not_reused_with_a_mask(make_trainer: Make) -> None:
    assert sft_run(make_trainer).sampling.is_exact
    assert not sft_run(make_trainer, inputs={"logit_mask": torch.ones(32, 32)}).sampling.is_exact


def test_a_sampler_that_takes_no_mask_is_refused_by_name(make_trainer: Make) -> None:
    run = sft_run(make_trainer, inputs={"logit_mask": torch.ones(32, 32)})

    def plain(policy: Any, prompts: Any, sampling: Any, *, generator: Any = None) -> Any: ...

    def passing_on(policy: Any, prompts: Any, sampling: Any, **options: Any) -> Any: ...

    run.sampling.sampler = passing_on
    check_evaluation(run)
    run.sampling.sampler = plain  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=r"logit_mask: sampler 'default' takes none; leave logit_mask out, or choose"):
        check_evaluation(run)
    plainly = sft_run(make_trainer)
    plainly.sampling.sampler = plain  # type: ignore[assignment]
    check_evaluation(plainly)


def test_a_mask_of_the_wrong_size_is_refused_before_the_first_step(make_trainer: Make) -> None:
    with pytest.raises(DataError, match="has 30 rows and 30 columns, and the model chooses among 32 tokens"):
        sft_run(make_trainer, inputs={"logit_mask": torch.ones(30, 30)})


def test_a_mask_with_a_dead_end_causes_a_warning(make_trainer: Make, capsys: pytest.CaptureFixture[str]) -> None:
    mask = torch.ones(32, 32)
    sft_run(make_trainer, inputs={"logit_mask": mask})
    mask[EOS] = 0.0  # the end token needs no allowed next token
    sft_run(make_trainer, inputs={"logit_mask": mask})
    assert "logit_mask" not in capsys.readouterr().err
    mask[5] = mask[7] = 0.0
    sft_run(make_trainer, inputs={"logit_mask": mask})
    said = capsys.readouterr().err
    assert "allows tokens after which it allows none" in said
    assert "count=2" in said
    assert "tokens=[5, 7]" in said
    assert "EOS" not in said
    mask[:, EOS] = 0.0
    sft_run(make_trainer, inputs={"logit_mask": mask})
    assert "allows EOS after no token" in capsys.readouterr().err


def test_a_prompt_after_which_the_mask_allows_nothing_is_refused_before_the_first_step(make_trainer: Make) -> None:
    mask = torch.ones(32, 32)
    mask[2] = 0.0  # c, the last token of the second prompt
    with pytest.raises(DataError, match=r"logit_mask\[2\]: allows no token after .* evaluation prompt 1, 'bc'"):
        sft_run(make_trainer, inputs={"logit_mask": mask})


BEST = {"keep_best": 1}
SWEPT = {"every": 1, "gen": {"temperature": [0, 1]}}


@pytest.mark.parametrize(
    ("metric", "evaluation", "message"),
    [
        (
            "reward/mean",
            {"every": 1},
            r"'reward/mean': evaluations yield no such metric; .*eval/reward/mean",
        ),
        ("eval/reward/men", {"every": 1}, r"they yield eval/time_s, eval/response/length_mean, .*eval/reward/std$"),
        ("eval/reward/mean@beta=1", SWEPT, r"each with one of @temperature=0, @temperature=1, or the best without"),
        ("eval/reward/mean@temperature=1.0", SWEPT, r"'eval/reward/mean@temperature=1.0': evaluations yield no such"),
        ("eval/reward/one", {"every": 1}, r"eval/reward/one': evaluations yield no such"),
    ],
)
def test_a_metric_that_no_evaluation_yields_is_refused_before_the_first_step(
    make_trainer: Make, metric: str, evaluation: dict[str, Any], message: str
) -> None:
    sections = {"gen": GEN, "eval": evaluation, "checkpoint": {**BEST, "metric": metric}}
    inputs = {"prompts": ["a", "bc"], "reward_fn": {"one": lambda outputs: [0.0] * len(outputs)}}
    with pytest.raises(ConfigError, match=message):
        make_trainer("ppo", make_gpt2(), sections=sections, inputs=inputs, rollouts=4, batch_size=4)


@pytest.mark.parametrize(
    "metric",
    ["eval/reward/mean", "eval/reward/mean@temperature=1", "eval/reward/two", "eval/response/length_mean@temperature=0",
     "eval/time_s"],
)  # fmt: skip
def test_a_metric_that_evaluations_yield_is_accepted_before_the_first_step(make_trainer: Make, metric: str) -> None:
    sections = {"gen": GEN, "eval": SWEPT, "checkpoint": {**BEST, "metric": metric}}
    rewards = {"one": lambda outputs: [0.0] * len(outputs), "two": lambda outputs: [1.0] * len(outputs)}
    inputs = {"prompts": ["a", "bc"], "reward_fn": rewards}
    make_trainer("ppo", make_gpt2(), sections=sections, inputs=inputs, rollouts=4, batch_size=4)


@pytest.mark.parametrize("section", [{"every": 2}, {"at_start": True}])
def test_an_evaluation_without_data_is_refused_before_the_first_step(make_trainer: Make, section: Any) -> None:
    (name,) = section
    with pytest.raises(ConfigError, match=rf"eval\.{name} = .*: there is nothing to evaluate; give eval_prompts"):
        sft_run(make_trainer, eval=section, inputs={"eval_prompts": None, "metric_fn": None})
    sft_run(make_trainer, eval=section, inputs={"eval_prompts": None, "metric_fn": None, "eval_samples": ["ab"]})
    sft_run(make_trainer, eval={}, inputs={"eval_prompts": None, "metric_fn": None})


def test_functions_that_nothing_will_call_are_named_in_one_warning(make_trainer: Make, capsys: Any) -> None:
    functions = {"reward_fn": lambda outputs: [0.0] * len(outputs), "metric_fn": share_of_a}
    sft_run(make_trainer, inputs={**functions, "eval_prompts": None})
    shown = capsys.readouterr().err
    assert shown.count("a function is not used: this trainer calls none") == 2
    assert all(shown.count(f"function={name}") == 1 for name in functions)
    sft_run(make_trainer, inputs=functions)
    assert "is not used" not in capsys.readouterr().err


def test_responses_that_the_context_cuts_short_are_counted_in_one_warning(make_trainer: Make, capsys: Any) -> None:
    context = make_gpt2().config.n_positions
    fits, too_many = context - 2, context - 1  # after the longer of the prompts "a" and "bc"
    sft_run(make_trainer, gen={"max_new_tokens": fits})
    assert "max_new_tokens" not in capsys.readouterr().err
    for sections in ({"gen": {"max_new_tokens": too_many}}, {"gen": GEN, "eval": {"gen": {"max_new_tokens": 10**9}}}):
        sft_run(make_trainer, **sections)
        shown = capsys.readouterr().err
        assert shown.count("end at the model's context, before max_new_tokens") == 1
        assert ("prompts=1" if "eval" not in sections else "prompts=2") in shown
        assert f"context={context}" in shown


def test_metrics_of_user_functions_are_accepted_before_they_are_known(make_trainer: Make) -> None:
    sections = {"eval": {"every": 1}, "checkpoint": {**BEST, "metric": "eval/anything"}}
    sft_run(make_trainer, **sections)
    sections["checkpoint"]["metric"] = "anything"
    with pytest.raises(ConfigError, match=r"'anything': .* and others that begin with eval/"):
        sft_run(make_trainer, **sections)


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
