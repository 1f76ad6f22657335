"""The losses of distillation in plain torch, row by row, without padding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from distill_making import teacher_folder
from held_laws import hold
from torch import Tensor
from transformers import AutoModelForCausalLM

SMALL: dict[str, Any] = {"teacher": teacher_folder(double=True), "batch_size": 4}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "demonstrations": ("distill", {**SMALL, "divergence": "forward_kl", "on_policy": 0.0}),
    "half on-policy": ("distill", {**SMALL, "divergence": "jsd", "beta": 0.3, "on_policy": 0.5}),
    "on-policy": ("distill_prompts", {**SMALL, "divergence": "reverse_kl", "temperature": 1.3}),
}


def distill(run: Any) -> Iterator[tuple[Tensor, dict[str, Any]]]:
    options = run.options
    teacher = AutoModelForCausalLM.from_pretrained(options["teacher"]).double()
    for rows in run.steps:
        losses, agreed = [], []
        for row in rows:
            temperature = options["temperature"] or run.gen["temperature"]
            tokens = torch.tensor([row.tokens])
            q = (run.model(tokens).logits[0] / temperature).softmax(-1)
            with torch.no_grad():
                p = (teacher(tokens).logits[0] / temperature).softmax(-1)
            for t, own in enumerate(row.action_mask):
                if own:
                    losses.append(_loss(q[t - 1], p[t - 1], options["divergence"], options["beta"]))
                    agreed.append(float(q[t - 1].argmax() == p[t - 1].argmax()))
        loss = torch.stack(losses).mean()
        yield loss, {"loss/total": loss, "distill/agreement": sum(agreed) / len(agreed), "data/tokens": len(losses)}


def _loss(q: Tensor, p: Tensor, kind: str, beta: float) -> Tensor:
    def kl(a: Tensor, b: Tensor) -> Tensor:
        return (a * (a / b).log()).sum()

    if kind == "jsd":
        m = beta * p + (1 - beta) * q
        return beta * kl(p, m) + (1 - beta) * kl(q, m)
    return kl(p, q) if kind == "forward_kl" else kl(q, p)


def check(law: str, variant: str) -> None:
    trainer, options = VARIANTS[variant]
    hold(
        "rlcore-distill", law, of=f"trainer-{trainer}-", options={trainer: options}, oracles={trainer: distill},
        config={"model": {"dtype": "auto"}},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_training_equals_an_independent_implementation(variant: str) -> None:
    check("it_equals_its_oracle", variant)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["half on-policy"])
def test_two_processes_equal_an_independent_implementation(variant: str) -> None:
    check("two_processes_equal_the_oracle", variant)
