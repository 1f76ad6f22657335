"""Online DPO against loops over numbers and plain torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from held_laws import hold
from torch import Tensor
from torch.nn.functional import logsigmoid

import rlcore
from rlcore.config import structure
from rlcore.errors import ConfigError, Diverged
from rlcore.settings import TrainConfig
from rlcore.training.build import assemble
from rlcore.training.inputs import Inputs
from rlcore_dpo.loss import best_and_worst
from rlcore_testing.small import PROMPTS, make_llama, make_tokenizer

SMALL: dict[str, Any] = {"batch_size": 4}
VARIANTS: dict[str, dict[str, Any]] = {
    "two answers": SMALL,
    "the best and the worst of four": {**SMALL, "num_generations": 4, "loss": "ipo", "average": "sum", "beta": 0.3},
    "without a reference": {**SMALL, "loss": "sigmoid", "reference_free": True, "sft_coef": 0.2},
}


def online_dpo(run: Any) -> Iterator[tuple[Tensor, dict[str, Any]]]:
    """Yield the loss of each round: the pairs are chosen and their losses computed answer by answer."""
    options, size = run.options, run.options["num_generations"]
    beta = options["beta"] or 0.1
    for answers in run.rounds:
        losses, imitated, wins = [], [], 0
        for start in range(0, len(answers), size):
            group = answers[start : start + size]
            best, worst = max(group, key=lambda each: each.score), min(group, key=lambda each: each.score)
            if best.score == worst.score:
                continue
            ratios = []
            for each in (best, worst):
                own = logprobs(run.model, each, run.gen["temperature"])
                ratio = own.sum()
                if not options["reference_free"]:
                    ratio = ratio - logprobs(run.reference, each, run.gen["temperature"]).sum().detach()
                ratios.append(ratio)
                if each is best:
                    imitated.append(own)
            margin = ratios[0] - ratios[1]
            wins += 1
            losses.append((margin - 1 / (2 * beta)) ** 2 if options["loss"] == "ipo" else -logsigmoid(beta * margin))
        loss = torch.stack(losses).mean() - (options["sft_coef"] or 0.0) * torch.cat(imitated).mean()
        yield loss, {"loss/total": loss, "pairs/fraction": wins / (len(answers) // size)}


def logprobs(model: Any, row: Any, temperature: float) -> Tensor:
    logits = model(torch.tensor([row.tokens])).logits[0] / temperature
    chosen = [t for t, own in enumerate(row.action_mask) if own]
    return torch.stack([logits[t - 1].log_softmax(-1)[row.tokens[t]] for t in chosen])


def check(law: str, variant: str) -> None:
    hold(
        "rlcore-dpo", law, of="trainer-online_dpo-", options={"online_dpo": VARIANTS[variant]},
        oracles={"online_dpo": online_dpo},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_training_equals_an_independent_implementation(variant: str) -> None:
    check("it_equals_its_oracle", variant)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["the best and the worst of four"])
def test_two_processes_equal_an_independent_implementation(variant: str) -> None:
    check("two_processes_equal_the_oracle", variant)


@pytest.mark.slow
@pytest.mark.parametrize("law", ["resume_is_exact", "two_processes_equal_one"])
def test_the_laws_hold_with_an_adapter(law: str) -> None:
    hold(
        "rlcore-dpo", law, of="trainer-online_dpo-", options={"online_dpo": SMALL},
        config={"model": {"peft": {"type": "lora", "r": 2}}},
    )  # fmt: skip


def test_pairs_are_the_best_and_the_worst_of_each_group() -> None:
    scores = torch.tensor([[1.0, 3.0, 2.0], [5.0, 5.0, 5.0], [0.0, -1.0, 9.0], [2.0, 7.0, 4.0]])
    known = torch.tensor([[True, True, True], [True, True, True], [True, True, False], [False, True, False]])
    # Group 1 has equal scores and group 3 a single one; of group 2 the last answer has no score.
    assert best_and_worst(scores, known).tolist() == [1, 0, 6, 7]
    assert best_and_worst(scores, known, min_margin=1.0).tolist() == [1, 0]
    assert best_and_worst(scores, known, min_margin=2.0).tolist() == []


def test_large_scores_that_differ_by_one_are_ranked() -> None:
    scores = torch.tensor([[1e8, 1e8 + 8.0]])
    assert best_and_worst(scores, torch.ones(1, 2, dtype=torch.bool)).tolist() == [1, 0]


def build(folder: Path, reward: Any = None, *, gen: Any = None, **options: Any) -> Any:
    settings = {
        "trainer": {"name": "rlcore-dpo:online_dpo", "batch_size": 4, **options}, "loggers": [],
        "gen": {"max_new_tokens": 5, **(gen or {})}, "run": {"root": str(folder), "steps": 3},
    }  # fmt: skip
    given = Inputs(
        model=make_llama(), tokenizer=make_tokenizer(), prompts=list(PROMPTS),
        reward_fn=reward or (lambda outputs: [float(len(output)) for output in outputs]),
    )  # fmt: skip
    return assemble(structure(TrainConfig, settings, where="test"), given, "test").trainer


def test_a_round_without_pairs_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = build(tmp_path, lambda outputs: [1.0] * len(outputs))
    before = {name: weight.clone() for name, weight in trainer.policy().module.named_parameters()}
    metrics = next(trainer.steps())
    assert metrics["pairs/fraction"] == 0
    assert "no prompt has two answers with different scores" in capsys.readouterr().err
    assert all(torch.equal(before[name], weight) for name, weight in trainer.policy().module.named_parameters())


def test_answers_without_a_score_are_in_no_pair(tmp_path: Path) -> None:
    trainer = build(tmp_path, lambda outputs: [None, *map(float, range(1, len(outputs)))])
    metrics = next(trainer.steps())
    assert metrics["pairs/fraction"] == 0.75
    assert metrics["pairs/score_margin"] == 1.0


def test_the_first_loss_is_ln_2(tmp_path: Path) -> None:
    trainer = build(tmp_path, lambda outputs: [float(i) for i in range(len(outputs))])
    metrics = next(trainer.steps())
    assert metrics["loss/total"] == pytest.approx(0.6931472, abs=1e-5)
    assert metrics["rewards/accuracies"] == 0


def test_an_infinite_score_ends_the_run(tmp_path: Path) -> None:
    trainer = build(tmp_path)
    trainer.rollout()
    batch = trainer.store.take()
    scores = batch["scores"].clone()
    scores[2] = torch.inf
    with pytest.raises(Diverged, match="step 1: the score of answer 2 of the round is inf"):
        trainer.update(batch.with_columns(scores=scores))


@pytest.mark.slow
def test_training_raises_the_reward(tmp_path: Path) -> None:
    rewards: list[float] = []

    class Watch:
        def on_step(self, run: Any, metrics: Any) -> None:
            rewards.append(metrics["reward/mean"])

    rlcore.train(
        make_llama(), tokenizer=make_tokenizer(),
        trainer={"name": "online_dpo", "batch_size": 16, "num_generations": 4, "optimizer": {"lr": 5e-3}},
        reward_fn=lambda outputs: [float(output.count("a")) for output in outputs], prompts=list(PROMPTS),
        gen={"max_new_tokens": 4, "eos_token_ids": []}, observers=[Watch()],
        run={"root": str(tmp_path), "steps": 40}, loggers=[],
    )  # fmt: skip
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 1.0


@pytest.mark.parametrize(("options", "gen", "message"), [
    ({"loss": "kto"}, {}, "learns from single answers, and online_dpo ranks pairs"),
    ({"num_generations": 1}, {}, r"num_generations = 1: must be at least 2"),
    ({"loss": "simpo", "ref_model": "other"}, {}, "loss 'simpo' has no reference; leave it out"),
    ({"gamma": 1.0}, {}, "trainer.gamma = 1.0: loss 'sigmoid' has none"),
    ({}, {"temperature": 0.0}, "gen.temperature = 0: all answers to a prompt would be equal"),
])  # fmt: skip
def test_options_that_cannot_be_meant_are_refused(
    tmp_path: Path, options: dict[str, Any], gen: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build(tmp_path, gen=gen, **options)
