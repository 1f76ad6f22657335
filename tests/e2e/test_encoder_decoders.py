"""Tests of `rlcore.train` with encoder-decoders: it accepts them like any model, for every data format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel

import rlcore
from rlcore.errors import ModelError
from rlcore_testing.small import make_bart, make_gpt2, make_t5, make_tokenizer


def train(model: Any, root: Path, **given: Any) -> rlcore.Result:
    run = {"root": str(root), "name": "run", "steps": 2, **given.pop("run", {})}
    return rlcore.train(model, tokenizer=make_tokenizer(), loggers=[], run=run, **given)


@pytest.mark.parametrize("model", [make_t5(), make_bart()], ids=lambda model: model.config.model_type)
def test_ppo_trains_an_encoder_decoder_on_prompts_with_columns_and_stop_sequences(
    model: PreTrainedModel, tmp_path: Path
) -> None:
    seen: list[tuple[str, str, str, int]] = []

    def reward_fn(samples: list[str], prompts: list[str], outputs: list[str], wanted: list[int]) -> list[float]:
        seen.extend(zip(samples, prompts, outputs, wanted, strict=True))
        return [-abs(len(output) - due) for output, due in zip(outputs, wanted, strict=True)]

    result = train(
        model, tmp_path, reward_fn=reward_fn,
        prompts=[{"prompt": "abc", "wanted": 3}, {"prompt": "de f", "wanted": 1}, {"prompt": "g", "wanted": 2}],
        trainer={"name": "ppo", "rollouts": 12, "batch_size": 6, "epochs": 1, "kl_coef": 0.1},
        gen={"max_new_tokens": 8, "stop_sequences": ["a", "k", "t"]},
    )  # fmt: skip
    assert all(sample == prompt + output for sample, prompt, output, _ in seen)
    assert {(prompt, wanted) for _, prompt, _, wanted in seen} == {("abc", 3), ("de f", 1), ("g", 2)}
    assert not any(stop in output for _, _, output, _ in seen for stop in "akt")
    assert len({len(output) for _, _, output, _ in seen}) > 2
    settings = yaml.safe_load((result.run_dir / "config.yaml").read_text())
    assert settings["model"]["architecture"] == "seq2seq_lm"
    saved = AutoModelForSeq2SeqLM.from_pretrained(result.run_dir / "model").state_dict()
    assert all(torch.equal(saved[name], weight) for name, weight in result.policy.model.state_dict().items())
    (output,) = result.generate(["ab"], temperature=0, max_new_tokens=5)
    assert isinstance(output, str)


@pytest.mark.slow
def test_an_encoder_decoder_memorises_a_dialogue(tmp_path: Path) -> None:
    dialogue = ["who? ", "me!", " why? ", "because."]
    result = train(
        make_t5(width=32), tmp_path, samples=[dialogue] * 8, run={"steps": 120},
        trainer={"name": "sft", "batch_size": 8, "optimizer": {"lr": 1e-2}},
    )  # fmt: skip
    assert result.generate(["who? "], temperature=0, max_new_tokens=9) == ["me!"]
    assert result.metrics["loss/total"] < 0.1


def test_a_named_architecture_that_does_not_fit_is_an_error_before_the_first_step(tmp_path: Path) -> None:
    for model, wrong, right in ((make_t5(), "causal_lm", "seq2seq_lm"), (make_gpt2(), "seq2seq_lm", "causal_lm")):
        with pytest.raises(ModelError, match=f"set model.architecture={right}, or leave it out"):
            train({"path": model, "architecture": wrong}, tmp_path, samples=["ab"], run={"name": right})
