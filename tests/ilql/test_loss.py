from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rlcore.ops import masked_sum
from rlcore_ilql.loss import awac_loss, cql_loss, lowest, next_values, q_loss, value_loss

NAN = float("nan")
# Two turns with another speaker's turn between them, and a sequence with left padding.
CHOSEN = torch.tensor([[False, True, False, True, True], [False, False, False, True, False]])
VALUES = torch.tensor([[NAN, 1.0, NAN, 2.0, 3.0], [NAN, NAN, NAN, 0.5, NAN]])
REWARDS = torch.tensor([[NAN, 0.0, NAN, 1.0, -1.0], [NAN, NAN, NAN, 2.0, NAN]])
Q_VALUES = torch.tensor(
    [
        [[NAN, 2.0, NAN, 2.0, 0.0], [NAN, NAN, NAN, 1.0, NAN]],
        [[NAN, 1.0, NAN, 3.0, -2.0], [NAN, NAN, NAN, 4.0, NAN]],
    ]
)


def q_row(*heads: list[float]) -> Tensor:
    return torch.tensor(heads)[:, None]


def test_the_next_value_is_that_of_the_next_chosen_token() -> None:
    assert next_values(VALUES, CHOSEN)[CHOSEN].tolist() == [2.0, 3.0, 0.0, 0.0]


def test_q_loss_at_hand_worked_arrays() -> None:
    loss = q_loss(Q_VALUES, VALUES, REWARDS, CHOSEN, gamma=0.5)
    # targets 0 + 2/2, 1 + 3/2, -1 + 0 and 2 + 0: (1 + 0), (1/4 + 1/4), (1 + 1), (1 + 4)
    assert loss[CHOSEN].tolist() == [1.0, 0.5, 2.0, 5.0]


def test_value_loss_at_hand_worked_arrays() -> None:
    targets = q_row([2.0, 2.0, 0.0, 1.0], [1.0, 3.0, -2.0, 1.0])  # the minimum: 1, 2, -2, 1
    values = torch.tensor([[0.0, 4.0, -4.0, 1.0]])
    # errors 1, -2, 2, 0: .8 * 1, .2 * 4, .8 * 4, 0
    assert value_loss(values, targets, tau=0.8)[0].tolist() == pytest.approx([0.8, 0.8, 3.2, 0.0])


def test_the_expectile_at_one_half_is_half_the_squared_error() -> None:
    generator = torch.Generator().manual_seed(0)
    values, targets = torch.randn(3, 7, generator=generator), torch.randn(2, 3, 7, generator=generator)
    halves = torch.nn.functional.mse_loss(values, torch.minimum(targets[0], targets[1]), reduction="none") / 2
    assert torch.allclose(value_loss(values, targets, tau=0.5), halves)


@pytest.mark.parametrize("tau", [0.1, 0.5, 0.7, 0.9])
def test_v_is_best_where_it_is_the_expectile_of_q(tau: float) -> None:
    # The tau-expectile m of {0, 1} solves tau (1 - m) = (1 - tau) m, so it is tau itself.
    values = torch.full((1, 2), tau, requires_grad=True)
    value_loss(values, q_row([0.0, 1.0]), tau=tau).sum().backward()
    assert values.grad is not None
    assert values.grad.sum().item() == pytest.approx(0.0, abs=1e-6)


def test_cql_loss_is_cross_entropy_of_each_q_function() -> None:
    generator = torch.Generator().manual_seed(0)
    scores, tokens = torch.randn(2, 6, 5, generator=generator), torch.tensor([0, 4, 2, 2, 1, 3])
    said = scores.log_softmax(-1)[:, torch.arange(6), tokens][:, None]
    expected = sum(torch.nn.functional.cross_entropy(each, tokens, reduction="none") for each in scores)
    assert torch.allclose(cql_loss(said)[0], expected)


def test_awac_loss_at_hand_worked_arrays() -> None:
    logprobs, values = torch.tensor([[-1.0, -2.0]]), torch.tensor([[0.0, 3.0]])
    targets = q_row([1.0, 2.0], [5.0, 9.0])
    loss = awac_loss(logprobs, values, targets, beta=2.0)
    assert loss[0].tolist() == pytest.approx([math.exp(2.0), 2 * math.exp(-2.0)])
    assert awac_loss(logprobs, values, targets, beta=0.0)[0].tolist() == [1.0, 2.0]


def leaves() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    made = {"q_values": (2, 1, 4), "q_logprobs": (2, 1, 4), "target": (2, 1, 4), "values": (1, 4), "logprobs": (1, 4)}
    return {name: torch.randn(*shape, generator=generator).requires_grad_() for name, shape in made.items()}


def test_each_loss_has_a_gradient_for_its_own_outputs_only() -> None:
    chosen, rewards = torch.tensor([[False, True, True, True]]), torch.zeros(1, 4)
    taught = {
        "q_values": lambda x: q_loss(x["q_values"], x["values"], rewards, chosen, gamma=0.9),
        "values": lambda x: value_loss(x["values"], x["target"], tau=0.7),
        "q_logprobs": lambda x: cql_loss(x["q_logprobs"]),
        "logprobs": lambda x: awac_loss(x["logprobs"], x["values"], x["target"], beta=1.0),
    }
    for name, loss in taught.items():
        given = leaves()
        loss(given).sum().backward()
        assert {each for each, tensor in given.items() if tensor.grad is not None} == {name}
    assert not lowest(leaves()["target"]).requires_grad


def learn(filling: float) -> list[float]:
    """Replace the tokens that are not chosen; return every loss at the chosen ones and the gradient of their sum."""

    def fill(array: Tensor) -> Tensor:
        return array.masked_fill(~CHOSEN, filling)

    values, q = fill(VALUES).requires_grad_(), fill(Q_VALUES).requires_grad_()
    terms = q_loss(q, values, fill(REWARDS), CHOSEN, gamma=0.9) + value_loss(values, fill(Q_VALUES), tau=0.7)
    terms = terms + awac_loss(values, values, fill(Q_VALUES), beta=0.1) + cql_loss(q)
    masked_sum(terms, CHOSEN).backward()
    assert q.grad is not None
    assert values.grad is not None
    return [each for array in (terms, values.grad, *q.grad) for each in array[CHOSEN].tolist()]


@pytest.mark.parametrize("anything", [0.0, 1e30, NAN, float("inf")])
def test_values_at_other_tokens_do_not_change_the_loss(anything: float) -> None:
    assert learn(anything) == learn(7.0)
    assert all(map(math.isfinite, learn(anything)))


def test_padding_on_either_side_does_not_change_the_result() -> None:
    narrow = q_loss(Q_VALUES, VALUES, REWARDS, CHOSEN, gamma=0.9)[CHOSEN]
    for left, right in [(0, 3), (2, 0), (1, 4)]:
        wide = [torch.nn.functional.pad(array, (left, right), value=NAN) for array in (Q_VALUES, VALUES, REWARDS)]
        chosen = torch.nn.functional.pad(CHOSEN, (left, right))
        assert q_loss(*wide, chosen, gamma=0.9)[chosen].equal(narrow)
