"""DPO in runs: gradients against plain transformers, references of every kind, KTO, and the known defects of others."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
import torch.nn.functional as F
from transformers import GPT2LMHeadModel

import rlcore
from rlcore.config import structure
from rlcore.data.preferences import build_preferences
from rlcore.errors import CheckpointError, ConfigError, DataError, ModelError
from rlcore.settings import TrainConfig
from rlcore.testing.small import make_gpt2, make_llama, make_t5, make_tokenizer
from rlcore.training.build import assemble
from rlcore.training.inputs import Inputs
from rlcore.types import Pair, Sample
from rlcore_dpo.config import DPOConfig, resolve
from rlcore_dpo.kto_objective import rotated, stack_labelled

ROWS: list[dict[str, Any]] = build_preferences.example_rows  # type: ignore[attr-defined]
LABELLED = [
    {"prompt": "ab", "completion": "cde", "label": True}, {"prompt": "q", "completion": "!", "label": False},
    {"prompt": "m", "completion": "nop", "label": True}, {"prompt": "z", "completion": "a b", "label": False},
    {"prompt": "who? ", "completion": "me!", "label": True},
]  # fmt: skip


def make(
    folder: Path, model: Any, rows: Any = ROWS, *, sections: Any = None, held_out: Any = None, **options: Any
) -> Any:
    settings = {
        "trainer": {"name": "rlcore-dpo:dpo", "batch_size": 6, **options}, "loggers": [],
        "run": {"root": str(folder), "steps": 3}, **(sections or {}),
    }  # fmt: skip
    inputs = Inputs(model=model, tokenizer=make_tokenizer(), samples=rows, eval_samples=held_out)
    return assemble(structure(TrainConfig, settings, where="test"), inputs, "test").trainer


def gradients(trainer: Any, batch: Any, size: int) -> dict[str, torch.Tensor]:
    trainer.updater.accumulate(batch, trainer.objective.loss_of(batch), size=size, group=trainer.objective.group)
    found = {n: p.grad.clone() for n, p in trainer.policy().module.named_parameters() if p.grad is not None}
    trainer.updater.optimizer.zero_grad()
    return found


def logprobs_of(model: Any, sample: Sample) -> torch.Tensor:
    """Return the log-prob of every token but the first, by the model alone and without padding."""
    tokens = torch.tensor(sample.tokens)
    return model(tokens[None]).logits[0, :-1].log_softmax(-1).gather(1, tokens[1:, None])[:, 0]


def answer(model: Any, sample: Sample) -> torch.Tensor:
    return logprobs_of(model, sample)[torch.tensor(sample.action_mask[1:])]


def perturbed(model: Any) -> Any:
    """Return a copy whose weights differ, as after a few steps."""
    other = copy.deepcopy(model)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return other


def expected_loss(name: str, plain: Any, reference: Any, pairs: list[Pair]) -> torch.Tensor:
    losses, likelihood, tokens = [], torch.zeros(()), 0
    for pair in pairs:
        c, r = answer(plain, pair.chosen), answer(plain, pair.rejected)
        rc, rr = (answer(reference, sample).detach() for sample in (pair.chosen, pair.rejected))
        if name == "sigmoid":
            losses.append(-F.logsigmoid(0.1 * ((c.sum() - rc.sum()) - (r.sum() - rr.sum()))))
        elif name == "ipo":
            losses.append(((c.mean() - rc.mean()) - (r.mean() - rr.mean()) - 5) ** 2)
        elif name == "simpo":
            losses.append(-F.logsigmoid(2 * (c.mean() - r.mean()) - 0.5))
        elif name == "cpo":
            losses.append(-F.logsigmoid(0.1 * (c.sum() - r.sum())))
        else:
            odds = [mean - torch.log(-torch.expm1(mean)) for mean in (c.mean(), r.mean())]
            losses.append(-0.1 * F.logsigmoid(odds[0] - odds[1]))
        nll = -(logprobs_of(plain, pair.chosen) if name == "orpo full" else c)
        likelihood, tokens = likelihood + nll.sum(), tokens + len(nll)
    coef = {"sigmoid": 0.3, "cpo": 1.0, "orpo": 1.0, "orpo full": 1.0}.get(name, 0.0)
    return torch.stack(losses).mean() + coef * likelihood / tokens


@pytest.mark.parametrize("name", ["sigmoid", "ipo", "simpo", "cpo", "orpo", "orpo full"])
def test_the_gradient_is_that_of_the_equation_in_any_split(tmp_path: Path, name: str) -> None:
    model = make_llama()
    reference, plain = copy.deepcopy(model), perturbed(model)
    options = {"sft_coef": 0.3} if name == "sigmoid" else {"nll": "full"} if name == "orpo full" else {}
    trainer = make(tmp_path, model, loss=name.removesuffix(" full"), **options)
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
    trainer = make(tmp_path, make_gpt2(), sections=sections, held_out=ROWS[:3])
    for metrics in (trainer.validation(), next(trainer.steps())):
        assert metrics["loss/total"] == pytest.approx(math.log(2), abs=1e-6)
        assert metrics["rewards/margins"] == pytest.approx(0, abs=1e-6)
        assert metrics["rewards/accuracies"] == 0  # ties are no wins


def losses_of(folder: Path, *, peft: bool = False, **options: Any) -> list[float]:
    sections = {"model": {"peft": {"type": "lora", "r": 2}}} if peft else {}
    trainer = make(folder, make_gpt2(), sections=sections, optimizer={"lr": 1e-2}, **options)
    steps = trainer.steps()
    return [next(steps)["loss/total"] for _ in range(4)]  # two passes, each in another order


@pytest.mark.parametrize("peft", [False, True])
def test_precomputed_log_probs_equal_those_of_every_step(tmp_path: Path, peft: bool) -> None:
    """In TRL #5542 and #7083 they differ, or belong to other rows after a shuffle."""
    once, always = (losses_of(tmp_path / str(p), precompute_ref=p, peft=peft) for p in (True, False))
    assert once == pytest.approx(always, abs=1e-5)
    assert once[-1] < once[0] - 0.01


def test_a_path_is_a_reference(tmp_path: Path) -> None:
    other = perturbed(make_gpt2())
    other.save_pretrained(tmp_path / "other")
    for precompute in (True, False):
        trainer = make(
            tmp_path / str(precompute), make_gpt2(), ref_model=str(tmp_path / "other"), precompute_ref=precompute
        )
        batch = trainer.batch([3, 1], table=0)
        samples = [s for i in (3, 1) for s in (trainer.rows[i].chosen, trainer.rows[i].rejected)]
        expected = [answer(other, sample).sum().item() for sample in samples]
        assert trainer.reference.logprobs(batch).tolist() == pytest.approx(expected, abs=1e-4)
    make_gpt2(vocab=40).save_pretrained(tmp_path / "foreign")
    with pytest.raises(ModelError, match="has a vocabulary of 40 tokens, the policy one of 32"):
        make(tmp_path / "x", make_gpt2(), ref_model=str(tmp_path / "foreign"), precompute_ref=False)


def test_the_table_is_the_same_bit_for_bit_on_two_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make(tmp_path, make_gpt2(), batch_size=3)
    trainer.reference.precompute()
    ranks, found = trainer.run.ranks, []
    monkeypatch.setattr(ranks, "world", 2)
    with torch.no_grad():
        for rank in (0, 1):
            monkeypatch.setattr(ranks, "rank", rank)
            monkeypatch.setattr(ranks, "gather", lambda share: found.append(share) or share)
            trainer.reference._table(trainer.rows, trainer.policy().score)
        assert len(found[0]) == len(found[1])  # passes of a wrapped module meet
        monkeypatch.setattr(ranks, "gather", lambda share: [*found[0], *found[1]])
        both = trainer.reference._table(trainer.rows, trainer.policy().score)
    assert torch.equal(both, trainer.reference.tables[0])


def test_precomputing_uses_no_dropout_and_no_random_numbers(tmp_path: Path) -> None:
    """TRL #2423 precomputes with dropout, and changes the order of the data."""
    model = make_gpt2()
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.5
    trainer = make(tmp_path, model, dropout=True)
    before = torch.get_rng_state()
    trainer.reference.precompute()
    assert torch.equal(torch.get_rng_state(), before)
    expected = answer(model.eval(), trainer.rows[0].chosen).sum().item()
    assert float(trainer.reference.tables[0][0, 0]) == pytest.approx(expected, abs=1e-4)


def test_a_policy_that_has_changed_is_not_taken_for_its_reference(tmp_path: Path) -> None:
    trainer = make(tmp_path, make_gpt2())
    trainer.run.step = 2
    with pytest.raises(CheckpointError, match="the policy has changed since the start"):
        trainer.reference.precompute()


def test_a_table_of_other_rows_is_refused(tmp_path: Path) -> None:
    trainer = make(tmp_path, make_gpt2())
    next(trainer.steps())
    state = trainer.state_dict()
    with pytest.raises(CheckpointError, match=r"reference log-probs of \[10, 0\] training and .*\[4, 0\]"):
        make(tmp_path / "few", make_gpt2(), ROWS[:4]).reference.load_state_dict(state["reference"])


def test_pairs_stay_together_and_padding_is_not_read(tmp_path: Path) -> None:
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
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(structure(DPOConfig, options, where="test"))


def test_prompts_of_an_encoder_decoder_have_no_likelihood(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.nll = 'full': the prompts of an encoder-decoder"):
        make(tmp_path, make_t5(), loss="orpo", nll="full")
    assert next(make(tmp_path / "x", make_t5()).steps())["loss/total"] == pytest.approx(math.log(2), abs=1e-6)


def test_defaults_follow_the_loss() -> None:
    simpo, orpo, exo = (resolve(DPOConfig(loss=name)) for name in ("simpo", "orpo", "exo"))
    assert (simpo.beta, simpo.sft_coef, simpo.precompute_ref) == (2.0, 0.0, False)
    assert (orpo.beta, orpo.sft_coef) == (0.1, 1.0)
    assert exo.label_smoothing == 1e-3


def test_rows_of_another_form_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"LabelledSample objects; this loss learns from pairs"):
        make(tmp_path, make_gpt2(), LABELLED, sections={"data": {"sample_pipeline": "unpaired"}})
    with pytest.raises(DataError, match=r"Sample objects; loss 'kto' learns from labelled answers"):
        make(tmp_path, make_gpt2(), [["a", "b"]], loss="kto", sections={"data": {"sample_pipeline": "samples"}})
    with pytest.raises(DataError, match=r"samples\[0\]: has no key 'chosen'"):
        make(tmp_path, make_gpt2(), LABELLED)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_no_answer_is_matched_with_its_own_prompt(tmp_path: Path, size: int) -> None:
    """TRL #1911 matches the answers of odd batches with themselves."""
    trainer = make(tmp_path, make_gpt2(), LABELLED, loss="kto")
    rows = trainer.rows[:size]
    mixed = rotated(stack_labelled(rows))
    for i, row in enumerate(rows):
        tokens = mixed.tokens[i][mixed.mask[i]].tolist()
        prompt = [t for t, chosen in zip(row.sample.tokens, row.sample.action_mask, strict=True) if not chosen]
        other = rows[(i + 1) % size].sample
        assert tokens == prompt + [t for t, chosen in zip(other.tokens, other.action_mask, strict=True) if chosen]


def test_the_gradient_of_kto_is_that_of_the_equation_in_any_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL #2153: z is the mean over all micro-batches of an optimizer step."""
    model = make_llama()
    reference, plain = copy.deepcopy(model), perturbed(model)
    trainer = make(tmp_path, model, LABELLED, loss="kto", desirable_weight=1.5, undesirable_weight=0.5)
    model.load_state_dict(plain.state_dict())
    batch = trainer.batch(range(5), table=0)
    mixed = rotated(batch)
    samples = [
        Sample(tuple(row[real].tolist()), tuple(chosen[real].tolist()))
        for row, real, chosen in zip(mixed.tokens, mixed.mask, mixed.action_mask, strict=True)
    ]
    with torch.no_grad():
        z = torch.stack([(answer(plain, s) - answer(reference, s)).sum() for s in samples]).mean().clamp(min=0)
    total = torch.zeros(())
    for row in trainer.rows:
        h = answer(plain, row.sample).sum() - answer(reference, row.sample).detach().sum()
        good = row.label
        total = total + (1.5 if good else 0.5) * (1 - torch.sigmoid(0.1 * (h - z if good else z - h)))
    (total / 5).backward()
    for size in (0, 1, 2):
        monkeypatch.setattr(trainer.objective, "config", attrs.evolve(trainer.config, micro_batch_size=size))
        found = gradients(trainer, batch, size)
        for key, parameter in plain.named_parameters():
            assert parameter.grad is not None
            assert torch.allclose(found[f"model.{key}"], parameter.grad, atol=1e-6, rtol=1e-3), key


def test_kto_unpairs_preferences_and_shuffles_and_never_steps_on_one_answer(tmp_path: Path) -> None:
    """LLaMA-Factory #4045 never shuffles for KTO; TRL #1380 is NaN without a mismatched answer."""
    trainer = make(tmp_path, make_gpt2(), ROWS[:3], loss="kto", batch_size=5)
    assert [row.label for row in trainer.rows] == [True, False] * 3
    drawn = [trainer._next() for _ in range(4)]
    assert {len(indices) for indices in drawn} == {5}
    flat = [*drawn[0], *drawn[1]]
    assert sorted(flat[:6]) == list(range(6))
    assert flat[:6] != list(range(6))
    with pytest.raises(DataError, match="has 1 answers with text; loss 'kto' needs at least 2"):
        make(tmp_path, make_gpt2(), LABELLED[:1], loss="kto")


def test_unbalanced_labels_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, make_gpt2(), [{**row, "label": True} for row in LABELLED], loss="kto")
    assert "desirable=5" in capsys.readouterr().err
    make(tmp_path / "x", make_gpt2(), LABELLED, loss="kto", undesirable_weight=1.2)
    assert "out of balance" not in capsys.readouterr().err


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


def test_bfloat16_and_held_out_pairs(tmp_path: Path) -> None:
    result = rlcore.train(
        make_gpt2(), tokenizer=make_tokenizer(), trainer={"name": "dpo", "batch_size": 4, "optimizer": {"lr": 1e-2}},
        samples=ROWS, eval_samples=ROWS[:3], loggers=[],
        run={"root": str(tmp_path), "steps": 12, "mixed_precision": "bf16"},
    )  # fmt: skip
    assert result.metrics["eval/loss/total"] < 0.6
    assert result.metrics["eval/rewards/accuracies"] == 1
