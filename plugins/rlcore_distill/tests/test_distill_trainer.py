from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from distill_making import make, other_tokenizer, teacher_folder
from transformers import AutoModelForCausalLM

import rlcore
from rlcore.errors import ConfigError
from rlcore_distill.trainer import Shares, prompt_of
from rlcore_testing.small import PROMPTS, SAMPLES, make_llama, make_tokenizer


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 1.0])
def test_the_share_of_the_policys_rows_is_exact_over_time(share: float) -> None:
    shares = Shares(share)
    taken = [shares.take(7) for _ in range(100)]
    assert sum(taken) == round(share * 700)
    assert max(taken) - min(taken) <= 1


def test_rows_of_the_policy_continue_the_prompts_of_demonstrations(tmp_path: Path) -> None:
    trainer = make(tmp_path, options={"on_policy": 0.5})
    found, metrics = trainer.rows.next()
    batch = found.own
    assert metrics["data/on_policy_fraction"] == 0.5
    assert "response/length_mean" in metrics
    assert not any(name.startswith("reward/") for name in metrics)
    assert not batch.columns
    known = {(each.tokens, each.action_mask) for each in trainer.run.samples}
    prompts = {prompt_of(each, trainer.run.learner.tokenizer).tokens for each in trainer.run.samples}
    rows = [
        (tuple(tokens[mask].tolist()), tuple(chosen[mask].tolist()))
        for tokens, mask, chosen in zip(batch.tokens, batch.mask, batch.action_mask, strict=True)
    ]
    assert [row in known for row in rows[2:]] == [True, True]
    for tokens, chosen in rows[:2]:
        assert tokens[: chosen.index(True)] in prompts


def test_the_teachers_outputs_are_its_most_likely_tokens(tmp_path: Path) -> None:
    trainer = make(tmp_path, trainer="distill_prompts", options={"on_policy": 0.0, "divergence": "nll"})
    batch = trainer.rows.next()[0].own
    plain = AutoModelForCausalLM.from_pretrained(teacher_folder())
    for tokens, mask, chosen in zip(batch.tokens, batch.mask, batch.action_mask, strict=True):
        row, start = tokens[mask], int(chosen[mask].nonzero()[0])
        expected = plain.generate(
            row[None, :start], max_new_tokens=6, do_sample=False, eos_token_id=30, pad_token_id=31
        )[0]
        assert row[start:].tolist() == expected[start:].tolist()


def test_the_sequence_loss_is_the_likelihood_of_the_teachers_tokens(tmp_path: Path) -> None:
    trainer = make(tmp_path, trainer="distill_prompts", options={"on_policy": 0.0, "divergence": "nll"})
    batch = trainer.rows.next()[0].own
    losses = trainer.loss(batch)[0]
    model = trainer.policy().module.model
    for i, t in batch.action_mask.nonzero().tolist():
        start = int(batch.mask[i].nonzero()[0])
        logprobs = model(batch.tokens[i, start:t][None]).logits[0, -1].log_softmax(-1)
        assert torch.allclose(losses[i, t], -logprobs[batch.tokens[i, t]], atol=1e-5)


def test_the_teacher_does_not_train_and_has_no_dropout(tmp_path: Path) -> None:
    trainer = make(tmp_path)
    teacher = trainer.teacher.model.module
    before = {name: weight.clone() for name, weight in teacher.named_parameters()}
    steps = trainer.steps()
    for _ in range(2):
        next(steps)
    assert not teacher.training
    assert all(torch.equal(before[name], weight) for name, weight in teacher.named_parameters())


@pytest.mark.slow
@pytest.mark.parametrize(("trainer", "options"), [
    ("distill", {"divergence": "forward_kl", "on_policy": 0.0}),
    ("distill", {"divergence": "jsd", "on_policy": 0.5}),
    ("distill_prompts", {"divergence": "reverse_kl"}),
])  # fmt: skip
def test_the_student_comes_nearer_to_the_teacher(tmp_path: Path, trainer: str, options: dict[str, Any]) -> None:
    rows = {"prompts": list(PROMPTS)} if trainer == "distill_prompts" else {"samples": [list(row) for row in SAMPLES]}
    losses: list[float] = []

    class Watch:
        def on_step(self, run: Any, metrics: Any) -> None:
            losses.append(metrics["loss/total"])

    rlcore.train(
        make_llama(), tokenizer=make_tokenizer(),
        trainer={
            "name": f"rlcore-distill:{trainer}", "teacher": teacher_folder(), "batch_size": 8,
            "optimizer": {"lr": 1e-2}, **options,
        },
        gen={"max_new_tokens": 6}, observers=[Watch()], run={"root": str(tmp_path), "steps": 40}, loggers=[], **rows,
    )  # fmt: skip
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])


def test_the_model_beneath_an_adapter_can_be_the_teacher(tmp_path: Path) -> None:
    trainer = make(
        tmp_path, options={"teacher": "base", "divergence": "reverse_kl", "on_policy": 0.0},
        model_options={"peft": {"type": "lora", "r": 2}},
    )  # fmt: skip
    batch = trainer.rows.next()[0].own
    assert float(trainer.loss(batch)[0].detach().abs().max()) < 1e-5  # a new adapter changes nothing
    for name, weight in trainer.policy().module.named_parameters():
        if "lora_B" in name:
            weight.data.add_(1.0)
    assert float(trainer.loss(batch)[0].detach().max()) > 1e-2


def test_held_out_demonstrations_are_evaluated(tmp_path: Path) -> None:
    samples = [list(row) for row in SAMPLES]
    trainer = make(tmp_path, inputs={"samples": samples, "eval_samples": samples[:3]}, options={"on_policy": 0.0})
    metrics = trainer.validation()
    assert set(metrics) == {"loss/total", "distill/agreement"}
    assert metrics["loss/total"] > 0


def test_reward_functions_are_reported_and_change_nothing(tmp_path: Path) -> None:
    def reward(outputs: list[str]) -> list[float | None]:
        return [None if "a" in output else float(len(output)) for output in outputs]

    given = {"prompts": list(PROMPTS), "reward_fn": reward}
    trainer = make(tmp_path / "with", trainer="distill_prompts", inputs=given)
    plain = make(tmp_path / "without", trainer="distill_prompts")
    (batch, metrics), (other, _) = trainer.rows.next(), plain.rows.next()
    assert torch.equal(batch.own.tokens, other.own.tokens)
    assert "reward/mean" in metrics


def test_a_teacher_with_another_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    folder = other_tokenizer(tmp_path / "other")
    message = r"other': the teacher has another tokenizer .* differ in 1; token 32 is '<new>'"
    with pytest.raises(ConfigError, match=message):
        make(tmp_path, options={"teacher": folder})


@pytest.mark.parametrize(("trainer", "options", "message"), [
    ("distill", {"teacher": ""}, "trainer.teacher is empty: name the folder or hub id"),
    ("distill", {"teacher": "base"}, "the policy has no adapter"),
    ("distill", {"beta": 1.0}, r"beta = 1\.0: must lie in"),
    ("distill", {"on_policy": 1.5}, r"on_policy = 1\.5: must"),
    ("distill", {"divergence": "nll"}, "use trainer distill_prompts, or the trainer sft"),
    ("distill_prompts", {"divergence": "nll"}, "imitates the teacher's outputs, and not the policy's; set it to 0"),
    ("distill_prompts", {"teacher": "base", "on_policy": 0.5}, "beneath an adapter gives log-probs and samples"),
    ("distill", {"teacher": "", "server": {"url": "http://127.0.0.1:9/v1"}}, "trainer.server.model is empty"),
])  # fmt: skip
def test_options_that_cannot_be_meant_are_refused(
    tmp_path: Path, trainer: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make(tmp_path, trainer=trainer, options=options)


def test_rows_of_preferences_are_refused(tmp_path: Path) -> None:
    pairs = [{"prompt": "a", "chosen": "b", "rejected": "c"}]
    with pytest.raises(rlcore.errors.DataError, match="distillation learns from demonstrations"):
        make(tmp_path, inputs={"samples": pairs}, data={"sample_pipeline": "preferences"})
