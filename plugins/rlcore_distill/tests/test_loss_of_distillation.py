"""The divergences against loops over plain numbers, and against values that TRL's own function gave."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rlcore_distill.loss import divergence, forward_kl, jensen_shannon, reverse_kl, top_outcomes

OF_TRL = {
    (1.0, 0.0): (2.685470396545, 1.565306396294), (1.0, 0.1): (0.183635348908, 0.072309457868),
    (1.0, 0.5): (0.424599751979, 0.138871165482), (1.0, 0.9): (0.180508037844, 0.065862684071),
    (1.0, 1.0): (2.571286147241, 1.430802460220), (0.7, 0.0): (4.236997375122, 2.468280240907),
    (0.7, 0.1): (0.235166870138, 0.073639507346), (0.7, 0.5): (0.525122023834, 0.137273668576),
    (0.7, 0.9): (0.232631977771, 0.072245052757), (0.7, 1.0): (3.961218062885, 2.497954126283),
}  # fmt: skip
"""Temperature and beta → loss, and sum of the absolute gradients of the student's logits, of trl 1.16.0.

The function GKDTrainer.generalized_jsd_loss of trl/experimental/gkd/gkd_trainer.py was called as

    generalized_jsd_loss(student, teacher, LABELS, beta=beta, temperature=temperature)

with the logits that `made` returns, in float64.
"""
LABELS = torch.tensor([[-100, 3, 1, 0], [-100, -100, 5, -100]])
KINDS: dict[str, Callable[[list[float], list[float], float], float]] = {
    "forward_kl": lambda q, p, _: kl(p, q),
    "reverse_kl": lambda q, p, _: kl(q, p),
    "jsd": lambda q, p, beta: beta * kl(p, mixed(p, q, beta)) + (1 - beta) * kl(q, mixed(p, q, beta)),
}


def made() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    student, teacher = (2 * torch.randn(2, 4, 6, generator=generator, dtype=torch.float64) for _ in range(2))
    return student, teacher


def kl(p: list[float], q: list[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def mixed(p: list[float], q: list[float], beta: float) -> list[float]:
    return [beta * a + (1 - beta) * b for a, b in zip(p, q, strict=True)]


def softmax(logits: list[float]) -> list[float]:
    total = sum(math.exp(each) for each in logits)
    return [math.exp(each) / total for each in logits]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beta", [0.1, 0.5, 0.8])
def test_each_divergence_equals_a_loop_over_numbers(kind: str, beta: float) -> None:
    student, teacher = (each.view(-1, 6) for each in made())
    found = divergence(student.log_softmax(-1), teacher.log_softmax(-1), kind=kind, beta=beta)
    expected = [
        KINDS[kind](softmax(q), softmax(p), beta) for q, p in zip(student.tolist(), teacher.tolist(), strict=True)
    ]
    assert found.tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_equal_finite_differences(kind: str) -> None:
    student, teacher = (each.view(-1, 6)[:3].clone() for each in made())

    def loss(logits: Tensor) -> Tensor:
        return divergence(logits.log_softmax(-1), teacher.log_softmax(-1), kind=kind, beta=0.3)

    assert torch.autograd.gradcheck(loss, student.requires_grad_(True))


@pytest.mark.parametrize(("setting", "recorded"), OF_TRL.items())
def test_loss_and_gradient_are_those_of_gkd_in_trl(setting: tuple[float, float], recorded: tuple[float, float]) -> None:
    (temperature, beta), (loss_of_trl, gradient_of_trl) = setting, recorded
    student, teacher = made()
    student.requires_grad_(True)
    chosen = LABELS != -100
    kind = {0.0: "forward_kl", 1.0: "reverse_kl"}.get(beta, "jsd")
    q, p = ((each / temperature).log_softmax(-1)[chosen] for each in (student, teacher))
    loss = divergence(q, p, kind=kind, beta=beta).sum() / chosen.sum()
    loss.backward()
    assert student.grad is not None
    assert loss.item() == pytest.approx(loss_of_trl, abs=1e-6)
    assert float(student.grad.abs().sum()) == pytest.approx(gradient_of_trl, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_distributions_have_no_loss_and_no_gradient(kind: str) -> None:
    student = made()[0].view(-1, 6).requires_grad_(True)
    logprobs = student.log_softmax(-1)
    loss = divergence(logprobs, logprobs.detach(), kind=kind, beta=0.5)
    loss.sum().backward()
    assert student.grad is not None
    assert loss.abs().max() < 1e-12
    assert student.grad.abs().max() < 1e-12


def test_the_mixture_tends_to_the_two_divergences() -> None:
    q, p = (each.view(-1, 6).log_softmax(-1) for each in made())
    near = 1e-6
    assert torch.allclose(jensen_shannon(q, p, beta=near) / near, forward_kl(q, p), rtol=1e-3)
    assert torch.allclose(jensen_shannon(q, p, beta=1 - near) / near, reverse_kl(q, p), rtol=1e-3)


def test_the_mixture_is_at_most_the_entropy_of_beta() -> None:
    q = torch.tensor([[0.0, -200.0]]).log_softmax(-1)
    found = jensen_shannon(q, q.flip(-1), beta=0.3)
    assert found.item() == pytest.approx(-0.3 * math.log(0.3) - 0.7 * math.log(0.7))


@pytest.mark.parametrize("kind", ["forward_kl", "jsd"])
def test_tokens_that_the_teacher_never_chooses_count_as_in_the_whole_vocabulary(kind: str) -> None:
    """The loss of k tokens, divided by their sum, is that of a teacher with the same probabilities and zeros."""
    logits, teacher = (each.view(-1, 6) for each in made())
    student = logits.requires_grad_(True)
    named, ids = teacher.log_softmax(-1).topk(3)
    q, p = top_outcomes(student.log_softmax(-1), ids, named, tail="renormalise")
    loss = divergence(q, p, kind=kind, beta=0.4)
    for i, row in enumerate(student.tolist()):
        probabilities = [0.0] * 6
        total = sum(math.exp(each) for each in named[i].tolist())
        for token, logprob in zip(ids[i].tolist(), named[i].tolist(), strict=True):
            probabilities[token] = math.exp(logprob) / total
        assert loss[i].item() == pytest.approx(KINDS[kind](softmax(row), probabilities, 0.4), rel=1e-9)
    loss.sum().backward()
    assert student.grad is not None
    assert bool(student.grad.isfinite().all())


@pytest.mark.parametrize("kind", KINDS)
def test_a_bucket_holds_what_the_teacher_does_not_name(kind: str) -> None:
    student, teacher = (each.view(-1, 6) for each in made())
    named, ids = teacher.log_softmax(-1).topk(2)
    q, p = top_outcomes(student.log_softmax(-1), ids, named, tail="bucket")
    loss = divergence(q, p, kind=kind, beta=0.4)
    for i in range(len(ids)):
        own, theirs = softmax(student[i].tolist()), softmax(teacher[i].tolist())
        kept = ids[i].tolist()
        short = [[each[token] for token in kept] for each in (own, theirs)]
        short = [[*each, 1 - sum(each)] for each in short]
        assert loss[i].item() == pytest.approx(KINDS[kind](short[0], short[1], 0.4), rel=1e-9)
        assert loss[i].item() <= KINDS[kind](own, theirs, 0.4)


def test_a_bucket_without_probability_keeps_gradients_finite() -> None:
    student = torch.zeros(1, 3).requires_grad_(True)
    named, ids = torch.tensor([[0.0, -80.0]]), torch.tensor([[0, 1]])
    for kind in KINDS:
        q, p = top_outcomes((1000 * student).log_softmax(-1), ids, named, tail="bucket")
        divergence(q, p, kind=kind, beta=0.5).sum().backward()
    assert student.grad is not None
    assert bool(student.grad.isfinite().all())


def test_an_unknown_divergence_is_refused() -> None:
    with pytest.raises(ValueError, match="kind = 'kl': must be one of forward_kl, reverse_kl, jsd"):
        divergence(torch.zeros(1, 2), torch.zeros(1, 2), kind="kl", beta=0.5)
