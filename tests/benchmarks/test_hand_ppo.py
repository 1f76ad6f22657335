"""Tests that the hand-written loop computes PPO correctly, so that it is a valid baseline."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import GPT2LMHeadModel

from benchmarks.example import PAD_ID, model_config
from benchmarks.figures import first_reached
from benchmarks.hand_gpt2 import HandRollouts, HandSampler, ModuleNetwork
from benchmarks.hand_ppo import HandPPO, generalised_advantages, ppo_loss, whiten


@pytest.fixture
def ppo(tmp_path: Path) -> HandPPO:
    torch.manual_seed(0)
    config = model_config(tiny=True)
    config.initializer_range = 0.5
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    return HandPPO(str(tmp_path))


@pytest.fixture
def rollouts(ppo: HandPPO) -> HandRollouts:
    return ppo.sampler(ppo.starts)


def test_walks_differ_in_length(rollouts: HandRollouts) -> None:
    lengths = rollouts.mask.sum(1)
    assert lengths.min() < lengths.max() == 9
    assert (rollouts.tokens[:, 1:][~rollouts.mask] == PAD_ID).all()


def test_the_first_minibatch_of_a_round_has_ratio_one(ppo: HandPPO, rollouts: HandRollouts) -> None:
    for rows in torch.arange(140).split(100):
        logprobs, values = ppo.network.score(rollouts.tokens[rows], rollouts.mask[rows])
        torch.testing.assert_close(logprobs, rollouts.logprobs[rows], atol=1e-5, rtol=0)
        torch.testing.assert_close(values, rollouts.values[rows], atol=1e-5, rtol=0)


def test_packed_scores_are_those_of_transformers(ppo: HandPPO, rollouts: HandRollouts) -> None:
    out = ppo.network.gpt2(rollouts.tokens[:, :-1], output_hidden_states=True)
    expected = out.logits.log_softmax(-1).gather(2, rollouts.tokens[:, 1:, None])[..., 0] * rollouts.mask
    expected_values = ppo.network.value_head(out.hidden_states[-1])[..., 0] * rollouts.mask
    logprobs, values = ppo.network.score(rollouts.tokens, rollouts.mask)
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(values, expected_values, atol=1e-5, rtol=0)


def test_the_model_is_the_same_through_the_modules_of_transformers(
    ppo: HandPPO, rollouts: HandRollouts, tmp_path: Path
) -> None:
    modules = ModuleNetwork(str(tmp_path))
    modules.value_head.load_state_dict(ppo.network.value_head.state_dict())
    for got, expected in zip(
        modules.score(rollouts.tokens, rollouts.mask), ppo.network.score(rollouts.tokens, rollouts.mask), strict=True
    ):
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
    torch.manual_seed(1)
    expected_walks = HandSampler(ppo.network, 140)(ppo.starts).texts()
    torch.manual_seed(1)
    assert HandSampler(modules, 140)(ppo.starts).texts() == expected_walks


def test_advantages_are_the_hand_worked_ones() -> None:
    rewards = torch.tensor([[0.0, 0.0, 1.0], [0.0, 2.0, 0.0]])
    values = torch.tensor([[0.5, 0.25, 0.5], [1.0, 0.5, 0.0]])
    # row 0: deltas -.25, .25, .5; row 1, which ends after two moves: deltas -.5, 1.5
    expected = torch.tensor([[-0.25 + 0.5 * 0.5, 0.25 + 0.5 * 0.5, 0.5], [-0.5 + 0.5 * 1.5, 1.5, 0.0]])
    torch.testing.assert_close(generalised_advantages(rewards, values, lam=0.5), expected)


def test_whitening_ignores_padding() -> None:
    mask = torch.tensor([[True, True], [True, False]])
    white = whiten(torch.tensor([[1.0, 2.0], [3.0, 77.0]]), mask)
    torch.testing.assert_close(white, torch.tensor([[-(1.5**0.5), 0.0], [1.5**0.5, 0.0]]))


def test_the_loss_is_the_hand_worked_one() -> None:
    mask = torch.tensor([[True, True, False]])
    rollouts = HandRollouts(torch.zeros(1, 4, dtype=torch.long), mask, torch.zeros(1, 3), torch.zeros(1, 3))
    logprobs = torch.log(torch.tensor([[1.5, 0.5, 9.0]]))
    advantages, returns = torch.tensor([[1.0, 1.0, 5.0]]), torch.tensor([[1.0, 0.1, 5.0]])
    values = torch.tensor([[0.5, 0.1, 5.0]])
    loss = ppo_loss(logprobs, values, rollouts, advantages, returns, torch.tensor([0]))
    # policy: 1.5 is clipped to 1.2, .5 is not; value: .5 moved more than .2, so (.2 - 1)^2 counts, and (.1 - .1)^2
    assert loss.item() == pytest.approx((-1.2 - 0.5 + 0.6 * (0.64 + 0.0)) / 2)


def test_an_iteration_of_the_hand_written_loop_changes_all_weights(ppo: HandPPO) -> None:
    before = [parameter.detach().clone() for parameter in ppo.network.parameters]
    assert 0 <= ppo.iterate() <= 1
    assert all(not torch.equal(old, new) for old, new in zip(before, ppo.network.parameters, strict=True))
    assert set(ppo.clock.phases) == {"sample", "score", "train", "optimizer"}


def test_the_level_is_reached_when_three_iterations_on_average_reach_it() -> None:
    scores, cpu = [0.9, 1.0, 0.9, 0.96, 1.0], [10.0, 11.0, 12.5, 13.0, 14.0, 15.0]
    assert first_reached(scores, cpu, 0.95) == {"iteration": 4, "cpu_s": 4.0}
    assert first_reached(scores, cpu, 0.99) is None
