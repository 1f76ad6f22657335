"""Losses of pairs in runs: gradients against plain transformers, options, resumption."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dpo_making import LABELLED, ROWS, answer, gradients, logprobs_of, make, perturbed
from transformers import GPT2LMHeadModel

import rlcore
from rlcore.config import structure
from rlcore.errors import ConfigError, DataError
from rlcore_dpo.config import DPOConfig, beta_of, resolve, smoothing_of
from rlcore_testing.small import make_gpt2, make_llama, make_t5, make_tokenizer
from rlcore_transformers.preferences.preferences import Pair

BETA = 2.0
"""Default beta of `sigmoid` for the 20 answers of `ROWS`, of 101 tokens: 10 / (101 / 20) = 1.98, with two digits."""


def expected_loss(name: str, plain: Any, reference: Any, pairs: list[Pair]) -> torch.Tensor:
    losses, likelihood, tokens = [], torch.zeros(()), 0
    for pair in pairs:
        c, r = answer(plain, pair.chosen), answer(plain, pair.rejected)
        rc, rr = (answer(reference, sample).detach() for sample in (pair.chosen, pair.rejected))
        if name == "sum":
            odd = -F.logsigmoid(BETA * ((c.sum() - rc.sum()) - (r.sum() - rr.sum())))
            losses.append(odd + 2 * -F.logsigmoid(2 * (c.mean() - r.mean()) - 0.5))
        elif name == "sigmoid":
            losses.append(-F.logsigmoid(BETA * ((c.sum() - rc.sum()) - (r.sum() - rr.sum()))))
        elif name == "ipo":
            losses.append(((c.mean() - rc.mean()) - (r.mean() - rr.mean()) - 5) ** 2)
        elif name == "ipo sum":
            losses.append(((c.sum() - rc.sum()) - (r.sum() - rr.sum()) - 5) ** 2)
        elif name == "simpo":
            losses.append(-F.logsigmoid(2 * (c.mean() - r.mean()) - 0.5))
        elif name == "cpo":
            losses.append(-F.logsigmoid(0.1 * (c.sum() - r.sum())))
        else:
            odds = [mean - torch.log(-torch.expm1(mean)) for mean in (c.mean(), r.mean())]
            losses.append(-0.1 * F.logsigmoid(odds[0] - odds[1]))
        nll = -(logprobs_of(plain, pair.chosen) if name == "orpo full" else c)
        likelihood, tokens = likelihood + nll.sum(), tokens + len(nll)
    coef = {"sigmoid": 0.3, "sum": 0.3, "cpo": 1.0, "orpo": 1.0, "orpo full": 1.0}.get(name, 0.0)
    return torch.stack(losses).mean() + coef * likelihood / tokens


@pytest.mark.parametrize("name", ["sigmoid", "ipo", "ipo sum", "simpo", "cpo", "orpo", "orpo full", "sum"])
def test_the_gradient_is_that_of_the_equation_in_any_split(tmp_path: Path, name: str) -> None:
    """TRL #1265 and #1677: ipo compares means over tokens, unless told to compare sums."""
    model = make_llama()
    reference, plain = copy.deepcopy(model), perturbed(model)
    own = {"sigmoid": {"sft_coef": 0.3}, "orpo full": {"nll": "full"}, "ipo sum": {"average": "sum"}}
    options: dict[str, Any] = own.get(name, {})
    loss = {"sigmoid": 1, "simpo": 2, "sft": 0.3} if name == "sum" else name.split(maxsplit=1)[0]
    trainer = make(tmp_path, model, loss=loss, **options)
    if trainer.config.precompute_ref:
        trainer.reference.precompute()
    model.load_state_dict(plain.state_dict())
    indices = [4, 0, 7, 2, 9, 1]
    expected_loss(name, plain, reference, [trainer.rows[i] for i in indices]).backward()
    for size in (0, 6, 4, 2):  # 1, 2, 3 and 6 micro-batches
        found = gradients(trainer, trainer.batch(indices, table=0), size)
        for key, parameter in plain.named_parameters():
            assert parameter.grad is not None
            assert torch.allclose(found[f"model.{key}"], parameter.grad, atol=2e-5, rtol=1e-3), key


@pytest.mark.parametrize("sections", [{}, {"model": {"peft": {"type": "lora", "r": 2}}}], ids=["full", "lora"])
def test_at_step_0_the_policy_is_its_reference(tmp_path: Path, sections: Any) -> None:
    trainer = make(tmp_path, make_gpt2(), sections=sections, held_out=ROWS[:3], beta=0.1)
    for metrics in (trainer.validation(), next(trainer.steps())):
        assert metrics["loss/total"] == pytest.approx(math.log(2), abs=1e-6)
        assert metrics["rewards/margins"] == pytest.approx(0, abs=1e-6)
        assert metrics["rewards/accuracies"] == 0  # ties are no wins


def test_pairs_are_never_split_and_padding_does_not_affect_the_loss(tmp_path: Path) -> None:
    trainer = make(tmp_path, make_gpt2(), micro_batch_tokens=12, loss="ipo")
    batch = trainer.batch(range(6), table=0)
    whole = trainer.objective.loss(batch, sft_weight=torch.zeros(()))[0]
    garbage = torch.where(batch.mask, batch.tokens, 29)
    spoilt = trainer.objective.loss(
        type(batch)(garbage, batch.mask, batch.action_mask, batch.ended, batch.columns), sft_weight=torch.zeros(())
    )[0]
    assert torch.allclose(whole, spoilt, atol=1e-5)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"loss": "hinge", "label_smoothing": 0.1}, "trainer.label_smoothing = 0.1: loss 'hinge' has none"),
    ({"loss": "exo", "label_smoothing": 0.0}, "loss 'exo' takes its logarithm; it must be above 0"),
    ({"loss": "robust", "label_smoothing": 0.5}, r"label_smoothing = 0.5: must lie in \[0, 0.5\)"),
    ({"loss": "simpo", "ref_model": "x"}, "trainer.ref_model = 'x': loss 'simpo' has no reference"),
    ({"reference_free": True, "ref_model": "x"}, "reference_free is set"),
    ({"loss": "kto", "batch_size": 1}, "trainer.batch_size = 1: loss 'kto' compares"),
    ({"loss": "kto", "precompute_ref": True}, "trainer.precompute_ref = true: loss 'kto'"),
    ({"loss": "kto", "reference_free": True}, "trainer.reference_free = true: loss 'kto'"),
    ({"loss": "kto", "sft_coef": 1.0}, "trainer.sft_coef = 1.0: loss 'kto'"),
    ({"loss": {"sigmoid": 1, "kto": 1}}, "trainer.loss.kto: learns from single answers, and is part of no sum"),
    ({"loss": {"sigmod": 1}}, "trainer.loss.sigmod: is no loss of pairs; the losses are sigmoid, sigmoid_norm, robust"),
    ({"loss": {"hinge": 0}}, "trainer.loss.hinge = 0.0: a weight is a finite number above 0"),
    ({"loss": {"sft": 1}}, "has no loss of pairs; add one of sigmoid, .* or use the trainer 'sft'"),
    ({"gamma": 1.0}, "trainer.gamma = 1.0: loss 'sigmoid' has none; it belongs to simpo"),
    ({"loss": "simpo", "average": "sum"}, "trainer.average = 'sum': loss 'simpo' has none; it belongs to ipo"),
    ({"desirable_weight": 2.0}, "trainer.desirable_weight = 2.0: loss 'sigmoid' has none; it belongs to kto"),
    ({"loss": {"hinge": 1}, "undesirable_weight": 2.0}, "trainer.undesirable_weight = 2.0: loss 'hinge' has none"),
    ({"nll": "full"}, "trainer.nll = 'full': the loss has no negative log-likelihood"),
    ({"loss": "cpo", "precompute_ref": True}, "trainer.precompute_ref = true: loss 'cpo' has no reference"),
    ({"reference_free": True, "precompute_ref": True}, "trainer.precompute_ref = true: reference_free is set"),
    ({"loss": {"hinge": 1, "sft": 1}, "sft_coef": 2}, "trainer.sft_coef = 2.0: trainer.loss has the term 'sft'"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(structure(DPOConfig, options, where="test"))


def test_the_likelihood_of_prompts_is_refused_for_an_encoder_decoder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.nll = 'full': the prompts of an encoder-decoder"):
        make(tmp_path, make_t5(), loss="orpo", nll="full")
    first = next(make(tmp_path / "x", make_t5(), beta=0.1).steps())
    assert first["loss/total"] == pytest.approx(math.log(2), abs=1e-6)


def test_rows_longer_than_the_context_are_cut_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The context of this model is 64 tokens."""
    rows = [
        *ROWS,
        {"prompt": "ab", "chosen": "c" * 70, "rejected": "d"},
        {"prompt": "a" * 64, "chosen": "b", "rejected": "c"},
    ]
    trainer = make(tmp_path, make_gpt2(), rows)
    said = " ".join(capsys.readouterr().err.split())
    assert "empty_answer=1" in said
    assert "cut=1" in said
    assert (len(trainer.rows), len(trainer.rows[-1].chosen.tokens)) == (len(ROWS) + 1, 64)
    assert math.isfinite(next(trainer.steps())["loss/total"])
    labelled = [*LABELLED, {"prompt": "ab", "completion": "c" * 70, "label": True}]
    assert len(make(tmp_path / "kto", make_gpt2(), labelled, loss="kto").rows[-1].sample.tokens) == 64
    assert "cut=1" in capsys.readouterr().err


def test_default_options_depend_on_the_chosen_loss() -> None:
    simpo, orpo = (resolve(DPOConfig(loss=name)) for name in ("simpo", "orpo"))
    assert (beta_of(simpo, "simpo"), simpo.sft_coef, simpo.precompute_ref) == (2.0, 0.0, False)
    assert (beta_of(orpo, "orpo"), orpo.sft_coef) == (0.1, 1.0)
    assert smoothing_of(DPOConfig(), "exo") == 1e-3


@pytest.mark.parametrize(
    ("loss", "num_tokens", "beta"),
    [
        ("sigmoid", 10, 1.0),  # 10 / 10
        ("robust", 7.24, 1.4),  # 10 / 7.24 = 1.38
        ("sigmoid", 50, 0.2),
        ("sigmoid", 100, 0.1),
        ("sigmoid", 300, 0.1),
        ("sigmoid", None, 0.1),
        ("hinge", 10, 0.1),
        ("simpo", 10, 2.0),
    ],
)
def test_beta_is_larger_for_short_answers_unless_it_is_set(loss: str, num_tokens: float | None, beta: float) -> None:
    assert beta_of(DPOConfig(), loss, num_tokens) == beta
    assert beta_of(DPOConfig(beta=0.3), loss, num_tokens) == 0.3


def test_a_run_takes_beta_from_the_mean_length_of_its_answers(tmp_path: Path) -> None:
    rows = [{"prompt": "ab", "chosen": "cdefghi", "rejected": "c"}, {"prompt": "b", "chosen": "cde", "rejected": "fgh"}]
    trainer = make(tmp_path, make_gpt2(), rows)
    lengths = [sum(each.action_mask) for pair in trainer.rows for each in (pair.chosen, pair.rejected)]
    assert lengths == [8, 2, 4, 4]  # letters, and the token that ends the answer
    assert [term.beta for term in trainer.objective.terms] == [2.2]  # 10 / 4.5 = 2.22
    assert make(tmp_path / "set", make_gpt2(), rows, beta=0.2).objective.terms[0].beta == 0.2


def test_rows_of_another_form_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"LabelledSample objects; this loss learns from pairs"):
        make(tmp_path, make_gpt2(), LABELLED, sections={"data": {"sample_pipeline": "unpaired"}})
    with pytest.raises(DataError, match=r"Sample objects; loss 'kto' learns from labelled answers"):
        make(tmp_path, make_gpt2(), [["a", "b"]], loss="kto", sections={"data": {"sample_pipeline": "samples"}})
    with pytest.raises(DataError, match=r"samples\[0\]: has no key 'chosen'"):
        make(tmp_path, make_gpt2(), LABELLED)


@pytest.mark.parametrize("options", [{"loss": "kto"}, {"loss": "orpo"}, {"ref_model": "other", "loss": "ipo"}], ids=str)
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, options: dict[str, Any]) -> None:
    if "ref_model" in options:
        perturbed(make_gpt2()).save_pretrained(tmp_path / "other")
        options = {**options, "ref_model": str(tmp_path / "other")}

    def train(name: str, steps: int, resume: str = "never") -> GPT2LMHeadModel:
        run = {"root": str(tmp_path / "runs"), "name": name, "steps": steps, "resume": resume}
        trainer = {"name": "dpo", "batch_size": 4, "optimizer": {"lr": 1e-2}, **options}
        result = rlcore.train(
            make_gpt2(), tokenizer=make_tokenizer(), trainer=trainer, samples=ROWS, run=run, loggers=[]
        )
        return result.policy.module

    whole = train("whole", 4)
    train("parts", 2)
    parts = train("parts", 4, "auto")
    for (key, one), (_, other) in zip(whole.named_parameters(), parts.named_parameters(), strict=True):
        assert torch.equal(one, other), key


def test_bfloat16_training_evaluates_held_out_pairs(tmp_path: Path) -> None:
    result = rlcore.train(
        make_gpt2(), tokenizer=make_tokenizer(), trainer={"name": "dpo", "batch_size": 4, "optimizer": {"lr": 1e-2}},
        samples=ROWS, eval_samples=ROWS[:3], loggers=[],
        run={"root": str(tmp_path), "steps": 12, "mixed_precision": "bf16"},
    )  # fmt: skip
    assert result.metrics["eval/loss/total"] < 0.6
    assert result.metrics["eval/rewards/accuracies"] == 1
