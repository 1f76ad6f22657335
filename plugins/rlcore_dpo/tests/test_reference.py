"""The reference of a run: computed once or in every step, by the policy or by another model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from dpo_making import ROWS, answer, make, perturbed

from rlcore.errors import CheckpointError, ModelError
from rlcore_testing.small import make_gpt2


def losses_of(folder: Path, *, peft: bool = False, **options: Any) -> list[float]:
    sections = {"model": {"peft": {"type": "lora", "r": 2}}} if peft else {}
    trainer = make(folder, make_gpt2(), sections=sections, optimizer={"lr": 1e-2, "eps": 1e-3}, **options)
    steps = trainer.steps()
    return [next(steps)["loss/total"] for _ in range(4)]  # two passes, each in another order


@pytest.mark.parametrize("peft", [False, True])
def test_precomputed_log_probs_equal_those_of_every_step(tmp_path: Path, peft: bool) -> None:
    """In TRL #5542 and #7083 they differ, or belong to other rows after a shuffle."""
    once, always = (losses_of(tmp_path / str(p), precompute_ref=p, peft=peft) for p in (True, False))
    assert once == pytest.approx(always, abs=1e-5)
    assert once[-1] < once[0] - 0.01


def test_the_reference_may_be_given_as_a_path(tmp_path: Path) -> None:
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
    """TRL #6403 crashes when it precomputes with ZeRO: a wrapped module needs as many passes on each rank."""
    trainer = make(tmp_path, make_gpt2(), batch_size=3)
    trainer.reference.precompute()
    ranks, parts, passes = trainer.run.ranks, [], []
    monkeypatch.setattr(ranks, "world", 2)
    monkeypatch.setattr(ranks, "sum", lambda part: parts.append(part) or part)

    def score(batch: Any) -> Any:
        passes[-1] += 1
        return trainer.policy().score(batch)

    with torch.no_grad():
        for rank in (0, 1):
            monkeypatch.setattr(ranks, "rank", rank)
            passes.append(0)
            trainer.reference._table(trainer.rows, score)
    assert passes[0] == passes[1]  # passes of a wrapped module meet
    assert torch.equal(parts[0] + parts[1], trainer.reference.tables[0])


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
    trainer.run.progress.step = 2
    with pytest.raises(CheckpointError, match="the policy has changed since the start"):
        trainer.reference.precompute()


def test_a_table_of_other_rows_is_refused(tmp_path: Path) -> None:
    trainer = make(tmp_path, make_gpt2())
    next(trainer.steps())
    state = trainer.state_dict()
    with pytest.raises(CheckpointError, match=r"reference log-probs of \[10, 0\] training and .*\[4, 0\]"):
        make(tmp_path / "few", make_gpt2(), ROWS[:4]).reference.load_state_dict(state["reference"])
