"""Teachers with padded tables of tokens, and models beneath adapters that were trained before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from distill_making import make, teacher_folder
from torch import Tensor
from transformers import AutoModelForCausalLM

from rlcore.errors import ConfigError, DataError
from rlcore_testing.small import SAMPLES, make_llama, make_tokenizer

TOKENS, TEMPERATURE = 32, 1.7


def loop(student: Any, teacher: Any, batch: Any, *, kind: str, tokens: int) -> list[float]:
    """Return the loss of each chosen token over the first tokens of both vocabularies, in float64."""
    losses = []
    for row, mask, chosen in zip(batch.tokens, batch.mask, batch.action_mask, strict=True):
        with torch.no_grad():
            q, p = (_softmax(model(row[mask][None]).logits[0, :, :tokens].double()) for model in (student, teacher))
        for t in chosen[mask].nonzero()[:, 0].tolist():
            a, b = (p[t - 1], q[t - 1]) if kind == "forward_kl" else (q[t - 1], p[t - 1])
            losses.append(sum(x * (x / y).log() for x, y in zip(a, b, strict=True)).item())
    return losses


def _softmax(logits: Tensor) -> Tensor:
    weights = (logits / TEMPERATURE).exp()
    return weights / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("kind", ["forward_kl", "reverse_kl"])
@pytest.mark.parametrize(("own", "other"), [(32, 64), (64, 32), (64, 40), (64, 64)])
def test_distributions_are_those_of_the_tokens_where_one_table_is_padded(
    tmp_path: Path, own: int, other: int, kind: str
) -> None:
    options = {
        "teacher": teacher_folder(other), "divergence": kind, "on_policy": 0.0, "temperature": TEMPERATURE,
    }  # fmt: skip
    inputs = {"samples": [list(row) for row in SAMPLES], "model": make_llama(vocab=own)}
    trainer = make(tmp_path, options=options, inputs=inputs)
    batch = trainer.rows.next()[0].own
    losses = trainer.loss(batch)[0][batch.action_mask]
    teacher = AutoModelForCausalLM.from_pretrained(teacher_folder(other))
    expected = loop(make_llama(vocab=own), teacher, batch, kind=kind, tokens=64 if own == other else TOKENS)
    assert losses.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    next(trainer.steps())


def test_a_sampled_row_of_padding_that_the_teacher_lacks_is_named(tmp_path: Path) -> None:
    model = make_llama(vocab=64)
    with torch.no_grad():
        model.lm_head.weight[40] = 100 * model.lm_head.weight[3]  # the most likely token of some prompts
        model.lm_head.weight[41] = -model.lm_head.weight[40]
    trainer = make(
        tmp_path, options={"on_policy": 1.0}, inputs={"samples": [list(row) for row in SAMPLES], "model": model}
    )
    with pytest.raises(DataError, match=r"has token 4[01], which the teacher does not have: its table has 32 rows"):
        next(trainer.steps())


def test_a_row_of_padding_that_the_teacher_samples_is_named(tmp_path: Path) -> None:
    model = make_llama(seed=7, width=24, vocab=64)
    with torch.no_grad():
        model.lm_head.weight[40] = 100 * model.lm_head.weight[3]
        model.lm_head.weight[41] = -model.lm_head.weight[40]
    model.save_pretrained(tmp_path / "teacher")
    make_tokenizer().save_pretrained(tmp_path / "teacher")
    trainer = make(
        tmp_path, trainer="distill_prompts", options={"teacher": str(tmp_path / "teacher"), "on_policy": 0.0}
    )
    with pytest.raises(DataError, match=r"has token 4[01], which the policy does not have: its table has 32 rows"):
        next(trainer.steps())


def trained_adapter(**options: Any) -> Any:
    """Return a model of peft with an adapter that changes its outputs."""
    model = peft.get_peft_model(make_llama(), peft.LoraConfig(task_type="CAUSAL_LM", r=2, **options))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(generator=torch.Generator().manual_seed(0))
    return model


BASE = {"teacher": "base", "divergence": "reverse_kl", "on_policy": 0.0, "temperature": TEMPERATURE}


def beneath(trainer: Any) -> tuple[list[float], list[float]]:
    """Return the losses of a step, and those against the model that the adapter was put on."""
    batch = trainer.rows.next()[0].own
    losses = trainer.loss(batch)[0][batch.action_mask]
    student = trainer.policy().module.model
    return losses.tolist(), loop(student, make_llama(), batch, kind="reverse_kl", tokens=TOKENS)


def test_the_model_beneath_a_trained_adapter_in_memory_is_the_teacher(tmp_path: Path) -> None:
    inputs = {"samples": [list(row) for row in SAMPLES], "model": trained_adapter()}
    trainer = make(tmp_path, options=BASE, inputs=inputs)
    found, expected = beneath(trainer)
    assert max(expected) > 0.1
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-5)
    next(trainer.steps())
    found, expected = beneath(trainer)
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_the_model_beneath_a_trained_adapter_in_a_folder_is_the_teacher(tmp_path: Path) -> None:
    trained_adapter().save_pretrained(tmp_path / "adapter")
    trainer = make(tmp_path, options=BASE, model_options={"peft": str(tmp_path / "adapter")})
    found, expected = beneath(trainer)
    assert max(expected) > 0.1
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_the_model_beneath_an_adapter_whose_making_changed_its_weights_is_the_one_before(tmp_path: Path) -> None:
    adapter = {"type": "lora", "r": 2, "init_lora_weights": "pissa"}
    make_llama().save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    inputs = {"samples": [list(row) for row in SAMPLES], "model": str(tmp_path / "model")}
    trainer = make(tmp_path / "run", options=BASE, model_options={"peft": adapter}, inputs=inputs)
    next(trainer.steps())
    found, expected = beneath(trainer)
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_a_base_that_trains_beside_a_trained_adapter_is_refused(tmp_path: Path) -> None:
    model = trained_adapter()
    model.base_model.model.model.norm.weight.requires_grad_(True)
    inputs = {"samples": [list(row) for row in SAMPLES], "model": model}
    with pytest.raises(ConfigError, match="is not kept, because some of its weights train too; name its folder"):
        make(tmp_path, options=BASE, inputs=inputs)
