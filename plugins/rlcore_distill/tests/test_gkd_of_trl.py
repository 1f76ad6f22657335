"""A batch of the trainer `distill` against values that TRL's trainer gave for the same sequences and models."""

from __future__ import annotations

from pathlib import Path

import pytest
from distill_making import make, teacher_folder

from rlcore.types import stack_samples
from rlcore_testing.small import SAMPLES, make_llama

OF_TRL = {
    0.0: (1.312165460658, 72.6742204723), 0.1: (0.104198779047, 5.3639602582), 0.5: (0.260852105702, 12.8670789664),
    0.9: (0.108855383033, 6.2698825470), 1.0: (1.426558635659, 103.5211777016),
}  # fmt: skip
"""Beta → loss, and sum of the absolute gradients of the student's weights, of trl 1.16.0.

The method GKDTrainer.compute_loss of trl/experimental/gkd/gkd_trainer.py was called in float64 with

    student, teacher = make_llama().double(), make_llama(seed=7, width=24).double()
    inputs = {"input_ids": ..., "attention_mask": ..., "labels": ...}, num_items_in_batch = number of labels

where the four rows are the tokens of SAMPLES[:4] with EOS, padded on the right, and labels those of the outputs. Its
divergence is at temperature 1, whatever its option `temperature` is, by which it samples.
"""


@pytest.mark.parametrize(("beta", "recorded"), OF_TRL.items())
def test_a_batch_has_the_loss_and_the_gradient_of_trl(
    tmp_path: Path, beta: float, recorded: tuple[float, float]
) -> None:
    kind = {0.0: "forward_kl", 1.0: "reverse_kl"}.get(beta, "jsd")
    options = {
        "teacher": teacher_folder(double=True), "on_policy": 0.0, "divergence": kind, "temperature": 1.0,
        "beta": beta if kind == "jsd" else 0.5,
    }  # fmt: skip
    inputs = {"samples": [list(row) for row in SAMPLES[:4]], "model": make_llama().double()}
    trainer = make(tmp_path, options=options, model_options={"dtype": "auto"}, inputs=inputs, gen={"temperature": 0.9})
    batch = stack_samples(trainer.run.samples)
    loss = trainer.loss(batch)[0].sum() / batch.action_mask.sum()
    loss.backward()
    gradient = sum(
        float(each.grad.abs().sum()) for each in trainer.policy().module.parameters() if each.grad is not None
    )
    assert loss.item() == pytest.approx(recorded[0], abs=1e-6)
    assert gradient == pytest.approx(recorded[1], rel=1e-5)
