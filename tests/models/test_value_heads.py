"""Tests of the value functions: their inputs, where their gradients flow, and that they never see future tokens."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from value_making import CONFIGS, build, by_hand, make, trajectories, values

from rlcore.errors import ModelError
from rlcore.sampling import sample
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt
from rlcore_transformers.models.freezing import decoder_blocks
from rlcore_transformers.models.heads import BranchValue, TrunkValue, ValueHead
from rlcore_transformers.models.model_options import SpeedConfig


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_value_head_reads_the_hidden_state_before_the_token(name: str, packing: bool, char_tokenizer: Any) -> None:
    policy = build(make(name), char_tokenizer, speed=SpeedConfig(packing=packing))
    head = policy.module.value.head
    for side in ("left", "right", "both"):
        batch = trajectories(side)
        expected = by_hand(policy.model.get_decoder(), head, batch)
        assert torch.allclose(values(policy, batch), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("name", CONFIGS)
def test_an_untrained_value_branch_has_the_outputs_of_the_trunk(
    name: str, packing: bool, layers: int, char_tokenizer: Any
) -> None:
    policy = build(make(name), char_tokenizer, value_layers=layers, speed=SpeedConfig(packing=packing))
    assert isinstance(policy.module.value, BranchValue)
    batch = trajectories()
    expected = by_hand(policy.model.get_decoder(), policy.module.value.head, batch)
    assert torch.allclose(values(policy, batch), expected, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        assert torch.allclose(values(policy, batch), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2"])
def test_the_branch_trains_itself_and_the_trunk_but_not_the_policys_top(
    name: str, checkpointing: bool, char_tokenizer: Any
) -> None:
    policy = build(make(name), char_tokenizer, value_layers=1, gradient_checkpointing=checkpointing)
    policy.module.train()
    blocks = decoder_blocks(policy.model)
    for _ in range(2):
        policy.module.zero_grad()
        values(policy, trajectories()).sum().backward()
        assert all(p.grad is not None and p.grad.any() for p in blocks[2].parameters() if p.dim() > 1)
        assert not any(p.grad is not None and p.grad.any() for p in blocks[3].parameters())
        own = policy.module.value.top.decoder
        assert all(p.grad is not None for block in decoder_blocks(own)[3:] for p in block.parameters())


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_branchs_gradient_in_the_trunk_is_a_full_copys(name: str, char_tokenizer: Any) -> None:
    policy = build(make(name), char_tokenizer, value_layers=2)
    whole, batch = copy.deepcopy(policy.model.get_decoder()), trajectories()
    values(policy, batch).sum().backward()
    by_hand(whole, policy.module.value.head, batch).sum().backward()
    bottom = zip(decoder_blocks(policy.model)[:2].parameters(), decoder_blocks(whole)[:2].parameters(), strict=True)
    for own, expected in bottom:
        assert torch.allclose(own.grad, expected.grad, rtol=1e-3, atol=1e-4)


def test_branch_layers_train_even_where_the_policys_are_frozen(char_tokenizer: Any) -> None:
    policy = build(make("gpt2"), char_tokenizer, value_layers=3, unfrozen_layers=1)
    own = policy.module.value.top.decoder
    assert all(p.requires_grad for block in decoder_blocks(own)[1:] for p in block.parameters())
    assert own.wte.weight is policy.model.transformer.wte.weight
    assert not own.wte.weight.requires_grad
    values(policy, trajectories()).sum().backward()
    assert not any(p.grad is not None and p.grad.any() for p in decoder_blocks(policy.model)[:3].parameters())


def test_the_branch_follows_the_trunk_as_it_trains(char_tokenizer: Any) -> None:
    policy, batch = build(make("llama"), char_tokenizer, value_layers=1), trajectories()
    before = values(policy, batch).detach()
    with torch.no_grad():
        for parameter in decoder_blocks(policy.model)[3].parameters():
            parameter.mul_(1.5)
    assert torch.equal(values(policy, batch), before)
    with torch.no_grad():
        for parameter in decoder_blocks(policy.model)[0].parameters():
            parameter.mul_(1.5)
    assert not torch.allclose(values(policy, batch), before, atol=1e-3)


def test_sampling_between_passes_does_not_change_values(char_tokenizer: Any) -> None:
    policy, batch = build(make("gpt2"), char_tokenizer, value_layers=1), trajectories()
    policy.module.train()
    expected = values(policy, batch).detach()
    prompts = [Prompt(text="ab", tokens=(0, 1)), Prompt(text="c", tokens=(2,))]
    sampled = sample(policy, prompts, SamplingConfig(max_new_tokens=5))
    assert "values" not in sampled
    assert all(part.training for part in policy.module.modules())
    assert torch.equal(values(policy, batch), expected)
    with pytest.raises(RuntimeError, match="recording"):
        policy.module.value.top()


def test_a_failed_forward_pass_does_not_affect_the_next_values(char_tokenizer: Any) -> None:
    policy, batch = build(make("gpt2"), char_tokenizer, value_layers=1), trajectories()
    expected = values(policy, batch).detach()
    head = policy.model.lm_head
    handle = head.register_forward_hook(lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        policy.score(batch)
    handle.remove()
    assert torch.equal(values(policy, batch), expected)


def test_a_copied_policy_is_independent_of_the_original(char_tokenizer: Any) -> None:
    policy, batch = build(make("gpt2"), char_tokenizer, value_layers=1), trajectories()
    twin = copy.deepcopy(policy.module)
    expected = values(policy, batch).detach()
    with torch.no_grad():
        for parameter in policy.module.parameters():
            parameter.zero_()
    found = twin(batch.tokens, batch.mask, batch.action_mask).values
    assert torch.equal(found, expected)


def test_as_many_value_layers_as_the_model_has_is_an_error(char_tokenizer: Any) -> None:
    with pytest.raises(ModelError, match=r"value_layers = 4: must lie in \[0, 3\] for the 4 blocks of GPT2LMHeadModel"):
        build(make("gpt2"), char_tokenizer, value_layers=4)


def test_with_a_frozen_model_only_the_value_head_trains(char_tokenizer: Any) -> None:
    policy = build(make("gpt2"), char_tokenizer, unfrozen_layers=0)
    assert isinstance(policy.module.value, TrunkValue)
    training = {name for name, p in policy.module.named_parameters() if p.requires_grad}
    assert training == {f"value.head.{part}" for part in ("rise.weight", "rise.bias", "fall.weight", "fall.bias")}
    values(policy, trajectories()).sum().backward()
    assert all(p.grad is not None for p in policy.module.value.parameters())


def test_the_value_head_equals_values_worked_by_hand() -> None:
    head = ValueHead(1)
    with torch.no_grad():
        head.rise.weight.copy_(torch.tensor([[2.0], [-1.0]]))
        head.rise.bias.copy_(torch.tensor([1.0, 0.5]))
        head.fall.weight.copy_(torch.tensor([[3.0, 10.0]]))
        head.fall.bias.copy_(torch.tensor([0.25]))
    # relu(2 * 1 + 1) * 3 + relu(-1 + .5) * 10 + .25 = 9.25; relu(-3) * 3 + relu(2.5) * 10 + .25 = 25.25
    assert head(torch.tensor([[1.0], [-2.0]])).tolist() == [9.25, 25.25]
