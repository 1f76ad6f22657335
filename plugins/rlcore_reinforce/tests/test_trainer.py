from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import rlcore
from rlcore.config import structure
from rlcore.errors import ConfigError
from rlcore.settings import TrainConfig
from rlcore.training.build import assemble
from rlcore.training.inputs import Inputs
from rlcore_testing.small import EOS, PROMPTS, make_gpt2, make_llama, make_tokenizer

ENDS = [EOS, 3, 7, 11, 19]


def halves(outputs: list[str]) -> list[float]:
    return [len(output) * 0.5 - output.count("a") for output in outputs]


def make(folder: Path, model: Any, *, gen: Any = None, **options: Any) -> Any:
    settings = {
        "trainer": {"name": "rlcore-reinforce:reinforce", "rollouts": 12, **options},
        "gen": {"max_new_tokens": 6, "eos_token_ids": ENDS, **(gen or {})},
        "run": {"root": str(folder), "steps": 3},
        "loggers": [],
    }
    inputs = Inputs(model=model, tokenizer=make_tokenizer(), prompts=list(PROMPTS), reward_fn=halves)
    return assemble(structure(TrainConfig, settings, where="test"), inputs, "test").trainer


def gradients(trainer: Any, batch: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    monkeypatch.setattr(trainer.updater, "step", lambda *_: None)
    trainer.update(batch)
    found = {n: p.grad.clone() for n, p in trainer.policy().module.named_parameters() if p.grad is not None}
    trainer.updater.optimizer.zero_grad()
    return found


@pytest.mark.parametrize("micro", [0, 5])
def test_the_gradient_is_that_of_the_equation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, micro: int) -> None:
    model = make_llama()
    plain = copy.deepcopy(model)
    trainer = make(tmp_path, model, micro_batch_size=micro)
    trainer.rollout()
    batch = trainer.store.take()
    outputs = [
        "".join(trainer.run.learner.tokenizer.batch_decode(row, skip_special_tokens=True))
        for row in batch.action_tokens
    ]
    scores = halves(outputs)
    total = torch.zeros(())
    for i, score in enumerate(scores):
        others = sum(scores[:i] + scores[i + 1 :]) / (len(scores) - 1)
        tokens, chosen = batch.tokens[i][batch.mask[i]], batch.action_mask[i][batch.mask[i]]
        logprobs = plain(tokens[None]).logits[0, :-1].log_softmax(-1).gather(1, tokens[1:, None])[:, 0]
        total = total - (score - others) * logprobs[chosen[1:]].sum()
    (total / sum(map(len, batch.action_tokens))).backward()
    found = gradients(trainer, batch, monkeypatch)
    assert set(found) == {f"model.{name}" for name, _ in plain.named_parameters()}
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None
        assert torch.allclose(found[f"model.{name}"], parameter.grad, atol=2e-5, rtol=1e-4), name


@pytest.mark.slow
def test_training_raises_a_reward_for_the_letter_a(tmp_path: Path) -> None:
    result = rlcore.train(
        make_gpt2(), tokenizer=make_tokenizer(),
        trainer={"name": "rlcore-reinforce:reinforce", "rollouts": 32, "optimizer": {"lr": 0.02}},
        reward_fn=lambda outputs: [output.count("a") for output in outputs], prompts=list(PROMPTS),
        gen={"max_new_tokens": 4, "eos_token_ids": []}, run={"root": str(tmp_path), "steps": 40}, loggers=[],
    )  # fmt: skip
    assert result.metrics["reward/mean"] > 3.5


def test_the_metrics_of_a_round_are_those_of_its_responses(tmp_path: Path) -> None:
    trainer = make(tmp_path, make_gpt2())
    heard = []
    trainer.run.observers.on_rollout = lambda _, batch: heard.append(batch)
    steps: Iterator[dict[str, float]] = trainer.steps()
    metrics = next(steps)
    (batch,) = heard
    assert len(batch) == 12
    assert metrics["reward/mean"] == pytest.approx(float(batch["scores"].mean()))
    assert metrics["response/length_mean"] == pytest.approx(sum(map(len, batch.action_tokens)) / 12)
    cut = sum(row[-1] not in ENDS for row in batch.action_tokens)
    assert metrics["response/truncated_fraction"] == pytest.approx(cut / 12)
    assert metrics["progress/epoch"] == pytest.approx(12 / len(PROMPTS))
    assert metrics["grad/norm"] > 0
    assert len(trainer.store) == 0


def test_every_prompt_is_continued_equally_often(tmp_path: Path) -> None:
    trainer = make(tmp_path, make_gpt2(), rollouts=2 * len(PROMPTS))
    trainer.rollout()
    batch = trainer.store.take()
    chosen = batch.mask & ~batch.action_mask
    seen = sorted(tuple(row[keep].tolist()) for row, keep in zip(batch.tokens, chosen, strict=True))
    assert seen == sorted(2 * [prompt.tokens for prompt in trainer.run.prompts])


def test_rounds_of_one_response_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rollouts = 1: must be at least 2"):
        make(tmp_path, make_gpt2(), rollouts=1)


def test_sampling_options_that_bias_the_gradient_cause_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, gen in enumerate(({}, {"temperature": 0.7}, {"temperature": 0.7, "top_k": 5, "min_new_tokens": 2})):
        make(tmp_path / str(number), make_gpt2(), gen=gen)
        said = capsys.readouterr().err
        assert said.count("its gradient is biased") == ("top_k" in gen)
    assert "gen.top_k, gen.min_new_tokens" in said
