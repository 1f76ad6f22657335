"""Tests of what is checked about evaluations before the first step: masks, metrics, data and unused functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from evaluation_runs import GEN, Make, sft_run, share_of_a

from rlcore.errors import ConfigError, DataError
from rlcore.training.evaluate import check_evaluation
from rlcore_testing.small import EOS, make_gpt2


def test_a_policy_without_q_heads_cannot_be_swept_over_beta(make_trainer: Make) -> None:
    with pytest.raises(ConfigError, match=r"eval.gen.beta = 4: .*choose a trainer that gives its policy Q-heads"):
        sft_run(make_trainer, eval={"gen": {"beta": [0, 4]}})
    with pytest.raises(ConfigError, match=r"^gen.beta = -1: .*this policy has none"):
        sft_run(make_trainer, gen={"beta": -1})
    sft_run(make_trainer, eval={"gen": {"beta": 0}})


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
