"""KTO in runs: which answers are compared, and the gradient against plain transformers."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from dpo_making import LABELLED, ROWS, answer, gradients, make, perturbed

from rlcore.errors import DataError
from rlcore.types import Sample
from rlcore_dpo.pair_objective import rotated, stack_labelled
from rlcore_testing.small import make_gpt2, make_llama


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


def test_no_answer_is_matched_with_another_to_the_same_prompt(tmp_path: Path) -> None:
    trainer = make(tmp_path, make_gpt2(), ROWS[:2], loss="kto")
    (good, bad, other, last), prompt = [row.sample.tokens for row in trainer.rows], 2
    mixed = rotated(stack_labelled(trainer.rows))
    seen = [mixed.tokens[i][mixed.mask[i]].tolist() for i in range(4)]
    start = len(ROWS[1]["prompt"])
    assert seen[:2] == [[*good[:prompt], *other[start:]]] * 2
    assert seen[2:] == [[*other[:start], *good[prompt:]]] * 2
    assert bad != last


@pytest.mark.parametrize("count", [3, 4, 5])
def test_held_out_answers_are_never_matched_with_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """TRL #1911, at the end of the held-out rows."""
    trainer = make(tmp_path, make_gpt2(), LABELLED, held_out=LABELLED[:count], loss="kto", batch_size=2)
    seen, batch = [], trainer.batch

    def spy(rows: range, *, table: int) -> Any:
        seen.append([*rows])
        return batch(rows, table=table)

    monkeypatch.setattr(trainer, "batch", spy)
    trainer.validation()
    assert [row for rows in seen for row in rows] == [*range(count)]
    assert all(len(rows) > 1 for rows in seen)


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


def test_unbalanced_labels_cause_a_warning_with_a_weight_to_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path, make_gpt2(), [{**row, "label": True} for row in LABELLED], loss="kto")
    assert "desirable=5" in capsys.readouterr().err
    make(tmp_path / "x", make_gpt2(), LABELLED, loss="kto", undesirable_weight=1.2)
    assert "out of balance" not in capsys.readouterr().err
