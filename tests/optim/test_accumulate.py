"""Tests of gradient accumulation: the gradient does not depend on how the batch is split into micro-batches."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlcore.optim.updater import Loss, Meter, Updater
from rlcore.ranks import Ranks
from rlcore.settings import OptimizerConfig
from rlcore.types import Trajectories

VOCABULARY, BOUNDS = 7, [(0, 0), (2, 0), (4, 0), (6, 0), (0, 9), (0, 14), (4, 20)]
Weight = tuple[nn.Embedding, Updater]


class Policy:
    """Minimal policy for an updater."""

    forward: Any = None
    autocast: Any = None
    version = 0

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def use_forward(self, forward: Any, *, autocast: Any) -> None:
        """Do nothing."""


def make(max_grad_norm: float = 0.0) -> Weight:
    torch.manual_seed(0)
    weight = nn.Embedding(VOCABULARY, 1)
    policy: Any = Policy(weight)
    config = OptimizerConfig(name="sgd", lr=1.0, max_grad_norm=max_grad_norm)
    return weight, Updater(policy, config, Ranks("no"), total_updates=None)


def ragged() -> Trajectories:
    """Twelve sequences of 2 to 7 tokens, the first of each a prompt."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(2, 8, (12,), generator=generator).tolist()
    rows = [torch.randint(VOCABULARY, (length,), generator=generator).tolist() for length in lengths]
    return Trajectories.stack(rows, [[False] + [True] * (length - 1) for length in lengths])


def numbers(weight: nn.Embedding, batch: Trajectories) -> Tensor:
    """Return one number per token: float[B, T]; NaN for tokens that are not chosen."""
    return weight(batch.tokens)[..., 0].tanh().masked_fill(~batch.action_mask, float("nan"))


def scores(weight: nn.Embedding, batch: Trajectories) -> Tensor:
    return numbers(weight, batch).nan_to_num().sum(1)


def preference(weight: nn.Embedding, batch: Trajectories) -> Tensor:
    """Return one loss per pair: the first of the two should score higher."""
    first, second = scores(weight, batch).view(-1, 2).unbind(1)
    return -F.logsigmoid(first - second)


LOSSES: dict[str, tuple[Any, int]] = {"token": (numbers, 1), "sequence": (scores, 1), "pair": (preference, 2)}


def loss_of(kind: str, weight: nn.Embedding) -> Loss:
    losses = LOSSES[kind][0]

    def loss(part: Trajectories) -> tuple[Tensor, dict[str, Tensor]]:
        each = losses(weight, part)
        return each, {"loss/total": each, "twice": 2 * each}

    return loss


@pytest.mark.parametrize(("size", "tokens"), BOUNDS)
@pytest.mark.parametrize("kind", LOSSES)
def test_the_split_changes_no_gradient_and_no_metric(kind: str, size: int, tokens: int) -> None:
    weight, updater = make()
    batch, meter, losses = ragged(), Meter(Ranks("no")), LOSSES[kind][0](make()[0], ragged()).detach()
    count = updater.accumulate(batch, loss_of(kind, weight), meter, size=size, tokens=tokens, group=LOSSES[kind][1])
    expected = {"token": int(batch.num_actions.sum()), "sequence": 12, "pair": 6}[kind]
    assert int(count) == expected
    plain = make()[0]
    mean = LOSSES[kind][0](plain, batch).nansum() / expected
    mean.backward()
    torch.testing.assert_close(weight.weight.grad, plain.weight.grad)
    means = meter.means()
    assert means["loss/total"] == pytest.approx(float(losses.nansum()) / expected, rel=1e-6)
    assert means["twice"] == pytest.approx(2 * means["loss/total"], rel=1e-6)


@pytest.mark.parametrize("world", [2, 5])
@pytest.mark.parametrize("kind", LOSSES)
def test_the_gradients_of_all_ranks_average_to_that_of_one(kind: str, world: int) -> None:
    whole, updater = make()
    updater.accumulate(ragged(), loss_of(kind, whole), group=LOSSES[kind][1])
    total = torch.zeros_like(whole.weight)
    for number in range(world):
        weight, updater = make()
        updater.ranks.rank, updater.ranks.world = number, world
        updater.accumulate(ragged(), loss_of(kind, weight), group=LOSSES[kind][1])
        total += weight.weight.grad / world  # as wrapped modules do
    torch.testing.assert_close(total, whole.weight.grad)


def test_the_number_of_tokens_in_the_mean_may_be_passed() -> None:
    weight, updater = make()
    assert updater.accumulate(ragged(), loss_of("token", weight), count=100) == 100
    plain = make()[0]
    (numbers(plain, ragged()).nansum() / 100).backward()
    torch.testing.assert_close(weight.weight.grad, plain.weight.grad)


def test_the_gradient_norm_is_averaged_over_optimizer_steps() -> None:
    weight, updater = make(max_grad_norm=1.0)
    meter, norms = Meter(Ranks("no")), list[float]()
    for _ in range(3):
        updater.accumulate(ragged(), loss_of("token", weight), meter)
        norm = updater.step(meter)
        assert norm is not None
        norms.append(float(norm))
    assert len(set(norms)) == 3
    other = Meter(Ranks("no"))
    other.merge(meter)
    assert other.means()["grad/norm"] == sum(norms) / 3


def test_a_step_without_a_bound_has_no_norm() -> None:
    weight, updater = make()
    meter = Meter(Ranks("no"))
    updater.accumulate(ragged(), loss_of("token", weight), meter)
    assert updater.step(meter) is None
    assert "grad/norm" not in meter.means()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", ["loss", "metric"])
def test_a_loss_that_is_not_finite_at_one_token_makes_no_optimizer_step(place: str, bad: float) -> None:
    """Only where it counts: padding may be anything. A metric shows what vanished in the loss, such as sigmoid(inf)."""
    for counts in (True, False):
        weight, updater = make()
        before, batch = weight.weight.detach().clone(), ragged()
        broken = torch.zeros(batch.tokens.shape)
        broken[tuple((batch.action_mask if counts else ~batch.action_mask).nonzero()[0])] = bad

        def loss(part: Trajectories, weight: nn.Embedding = weight) -> tuple[Tensor, dict[str, Tensor]]:
            losses = numbers(weight, part)
            if place == "loss":
                return losses + part["broken"], {}
            return losses, {"policy/approx_kl": part["broken"]}

        updater.accumulate(batch.with_columns(broken=broken), loss)
        updater.step()
        assert (updater.num_skipped, updater.num_updates) == ((1, 0) if counts else (0, 1))
        assert torch.equal(weight.weight, before) == counts
