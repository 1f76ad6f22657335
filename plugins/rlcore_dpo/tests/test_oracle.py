"""The losses of DPO, of its relatives and of KTO in plain torch, answer by answer, without padding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest
import torch
from depths import by_day
from held_laws import hold
from torch import Tensor
from torch.nn.functional import logsigmoid

from rlcore_dpo import loss as losses
from rlcore_dpo.config import LossName
from rlcore_dpo.pair_objective import KTOObjective
from rlcore_dpo.reference import Reference
from rlcore_testing import LawBroken

WITHOUT_REFERENCE = ("cpo", "simpo", "orpo")

SMALL: dict[str, Any] = {"batch_size": 4}
LOSSES = (
    "sigmoid", "hinge", "ipo", "exo", "apo_zero", "apo_down", "nca", "bco", "sppo", "discopop", "cpo", "simpo", "orpo",
    "sigmoid_norm",
)  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    **{loss: {**SMALL, "loss": loss} for loss in LOSSES},
    "sigmoid": {**SMALL, "loss": "sigmoid", "beta": 0.1},  # the default depends on all rows
    "robust": {**SMALL, "loss": "robust", "label_smoothing": 0.1, "beta": 0.1},
    "another temperature": {**SMALL, "loss": "discopop", "tau": 0.5},
    "a sum": {
        **SMALL,
        "loss": {"sigmoid": 1, "ipo": 0.5, "sft": 0.1},
        "nll": "full",
        "label_smoothing": 0.1,
        "beta": 0.1,
    },
    "a reference in every step": {**SMALL, "loss": "ipo", "average": "sum", "precompute_ref": False},
    "kto": {"batch_size": 6, "loss": "kto", "desirable_weight": 3.0, "undesirable_weight": 0.1},
}


def dpo(run: Any) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    for pairs in run.steps:
        total = torch.zeros(())
        likelihoods = []
        for pair in pairs:
            for name, weight in named_losses(run.options).items():
                total = total + weight * _pair_loss(run, name, pair) / len(pairs)
            whole = (False,) + (True,) * (len(pair.chosen.tokens) - 1)
            mask = whole if run.options["nll"] == "full" else pair.chosen.action_mask
            likelihoods.append(logprobs(run.model, pair.chosen.tokens, mask))
        total = total - sft_weight(run.options) * torch.cat(likelihoods).mean()
        yield total, {"loss/total": total}


def named_losses(options: Any) -> dict[str, float]:
    loss = options["loss"]
    return {loss: 1.0} if isinstance(loss, str) else {name: weight for name, weight in loss.items() if name != "sft"}


def sft_weight(options: Any) -> float:
    loss = options["loss"]
    if options["sft_coef"] is not None:
        return float(options["sft_coef"])
    if not isinstance(loss, str):
        return float(loss.get("sft", 0.0))
    return 1.0 if loss in {"cpo", "orpo"} else 0.0


def _pair_loss(run: Any, name: str, pair: Any) -> Tensor:  # noqa: C901, PLR0912  one branch for each loss
    options, scores = run.options, []
    for answer in (pair.chosen, pair.rejected):
        score = logprobs(run.model, answer.tokens, answer.action_mask).sum()
        if name not in WITHOUT_REFERENCE and not options["reference_free"]:
            score = score - logprobs(run.reference, answer.tokens, answer.action_mask).sum()
        if name in {"simpo", "orpo", "sigmoid_norm"} or (name == "ipo" and options["average"] == "mean"):
            score = score / sum(answer.action_mask)
        scores.append(score)
    c, r = scores
    beta = options["beta"] or (2.0 if name == "simpo" else 0.1)
    e = options["label_smoothing"]
    e = (1e-3 if name == "exo" else 0.0) if e is None else e
    x, half = beta * (c - r), 1 / (2 * beta)
    won, lost = 1 / (1 + (-x).exp()), 1 / (1 + x.exp())
    if name in {"sigmoid", "cpo", "sigmoid_norm"}:
        return -(1 - e) * won.log() - e * lost.log()
    if name == "robust":
        return (-(1 - e) * won.log() + e * lost.log()) / (1 - 2 * e)
    if name == "hinge":
        return (1 - x).clamp(min=0)
    if name == "ipo":
        return (c - r - half) ** 2
    if name == "exo":
        return won * (won / (1 - e)).log() + lost * (lost / e).log()
    if name == "apo_zero":
        return 1 - torch.sigmoid(beta * c) + torch.sigmoid(beta * r)
    if name == "apo_down":
        return torch.sigmoid(beta * c) + 1 - won
    if name == "nca":
        return -logsigmoid(beta * c) - 0.5 * (logsigmoid(-beta * c) + logsigmoid(-beta * r))
    if name == "bco":
        return -logsigmoid(beta * c) - logsigmoid(-beta * r)
    if name == "sppo":
        return (c - half) ** 2 + (r + half) ** 2
    if name == "discopop":
        gate = torch.sigmoid(x / options["tau"])
        return (1 - gate) * -won.log() + gate * (-x).exp()
    if name == "simpo":
        return (1 + (options["gamma"] - x).exp()).log()
    odds = (c - (1 - c.exp()).log()) - (r - (1 - r.exp()).log())
    assert name == "orpo"
    return beta * (1 + (-odds).exp()).log()


def kto(run: Any) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    beta = run.options["beta"] or 0.1
    for rows in run.steps:
        parts = [_parts(row.sample) for row in rows]
        mismatched = []
        for i, (prompt, _) in enumerate(parts):
            others = [*parts[i + 1 :], *parts[:i]]
            answer = next((answer for other, answer in others if other != prompt), others[0][1])
            mask = [False] * len(prompt) + [True] * len(answer)
            mismatched.append(float(_ratio(run, [*prompt, *answer], mask)))
        z = max(sum(mismatched) / len(rows), 0.0)
        losses = []
        for row in rows:
            h = _ratio(run, row.sample.tokens, row.sample.action_mask)
            if row.label:
                losses.append(run.options["desirable_weight"] * (1 - torch.sigmoid(beta * (h - z))))
            else:
                losses.append(run.options["undesirable_weight"] * (1 - torch.sigmoid(beta * (z - h))))
        loss = torch.stack(losses).mean()
        yield loss, {"loss/total": loss, "kl/mismatched": torch.tensor(z)}


def _parts(sample: Any) -> tuple[list[int], list[int]]:
    marked = list(zip(sample.tokens, sample.action_mask, strict=True))
    return [token for token, own in marked if not own], [token for token, own in marked if own]


def _ratio(run: Any, tokens: Any, mask: Any) -> Tensor:
    return logprobs(run.model, tokens, mask).sum() - logprobs(run.reference, tokens, mask).sum()


def logprobs(model: Any, tokens: Any, mask: Any) -> Tensor:
    """Return the log-prob of each token that `mask` selects."""
    logits = model(torch.tensor([list(tokens)])).logits[0]
    chosen = [t for t, own in enumerate(mask) if own]
    return torch.stack([logits[t - 1, tokens[t]] - logits[t - 1].logsumexp(-1) for t in chosen])


def check(law: str, variant: str) -> None:
    oracles = {"dpo": kto if variant == "kto" else dpo}
    hold("rlcore-dpo", law, of="trainer-dpo-", options={"dpo": VARIANTS[variant]}, oracles=oracles)


@pytest.mark.slow
@pytest.mark.parametrize("variant", by_day(VARIANTS, ["sigmoid", "kto", "ipo", "simpo", "a reference in every step"]))
def test_training_equals_an_independent_implementation(variant: str) -> None:
    check("it_equals_its_oracle", variant)


def test_every_loss_is_compared_with_an_independent_implementation() -> None:
    assert {each["loss"] for each in VARIANTS.values() if isinstance(each["loss"], str)} == set(get_args(LossName))


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["sigmoid", "kto"])
def test_two_processes_equal_an_independent_implementation(variant: str) -> None:
    check("two_processes_equal_the_oracle", variant)


_logprobs = Reference.logprobs
MUTATIONS: dict[str, tuple[str, Any, str, Any]] = {
    "references of chosen and rejected answers exchanged": (
        "ipo", Reference, "logprobs", lambda self, part: _logprobs(self, part).view(-1, 2).flip(1).flatten(),
    ),
    "no reference": ("a sum", Reference, "logprobs", lambda self, part: torch.zeros(len(part))),
    "the signs of a loss": (
        "apo_down", losses, "apo_down_loss", lambda c, r, beta: losses.apo_zero_loss(c, r, beta=beta),
    ),
    "no mean of mismatched answers": ("kto", KTOObjective, "kl", lambda *_: torch.zeros(())),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutated_loss_differs_from_the_independent_implementation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variant, place, attribute, mutant = MUTATIONS[name]
    monkeypatch.setattr(place, attribute, mutant)
    with pytest.raises(LawBroken, match="of step"):
        check("it_equals_its_oracle", variant)
