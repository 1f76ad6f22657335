"""Tests of the Q-heads: their outputs, their targets, and sampling with advantages from the trunk."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import GPT, make_causal
from torch import Tensor
from transformers import GPT2Config

from rlcore.errors import ModelError
from rlcore.types import Trajectories
from rlcore_ilql.config import q_heads
from rlcore_ilql.q_heads import sync_targets
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig, SpeedConfig
from rlcore_transformers.models.policy import ModelPolicy

ROWS = ([3, 5, 7, 9, 11], [4, 6, 8])
CHOSEN = ([False, False, True, True, True], [False, True, True])


@pytest.fixture
def model() -> Any:
    torch.manual_seed(3)
    return make_causal(GPT2Config(**GPT))


def build(spec: Any, tokenizer: Any, *, num: int = 2, **options: Any) -> ModelPolicy:
    torch.manual_seed(5)
    return build_causal_lm(
        spec, CausalLMConfig(**options), tokenizer=tokenizer, value_head=True, reference=True, heads=q_heads(num)
    )


def batch() -> Trajectories:
    return Trajectories.stack(ROWS, CHOSEN)


def by_hand(policy: ModelPolicy, head: Any, row: int) -> Tensor:
    """Return the Q-values after each token of a row but the first, from the model's own hidden states."""
    states: list[Tensor] = []
    hook = policy.model.get_output_embeddings().register_forward_pre_hook(lambda _, args: states.append(args[0]))
    tokens = torch.tensor([ROWS[row]])
    policy.model(input_ids=tokens, attention_mask=torch.ones_like(tokens))
    hook.remove()
    rise, fall = head.rise, head.fall
    hidden = torch.relu(states[0][0] @ rise.weight.T + rise.bias)
    return (hidden @ fall.weight.T + fall.bias)[:-1]


@pytest.mark.parametrize("packing", [True, False])
def test_q_of_a_chosen_token_is_computed_from_the_state_before_it(
    model: Any, char_tokenizer: Any, packing: bool
) -> None:
    policy = build(model, char_tokenizer, speed=SpeedConfig(packing=packing))
    heads = policy.module.q_heads
    assert heads is not None
    with torch.no_grad():  # targets that differ from their heads
        for weight in heads.targets.parameters():
            weight.mul_(0.5)
    said = policy.score(batch())
    assert policy.steers
    for k in range(2):
        for row, tokens in enumerate(ROWS):
            every, targets = by_hand(policy, heads.heads[k], row), by_hand(policy, heads.targets[k], row)
            for t in range(1, len(tokens)):
                chosen = float(CHOSEN[row][t])
                wanted = (every[t - 1, tokens[t]], every[t - 1].log_softmax(-1)[tokens[t]], targets[t - 1, tokens[t]])
                got = (
                    said.heads["q_values"][k, row, t],
                    said.heads["q_logprobs"][k, row, t],
                    said.heads["target_q_values"][k, row, t],
                )
                torch.testing.assert_close(torch.stack(got), torch.stack(wanted) * chosen, rtol=1e-4, atol=1e-5)
    assert float(said.heads["q_values"][:, 0, 0].abs().max()) == 0.0
    assert float(said.heads["q_values"][:, 1, 3:].abs().max()) == 0.0


def test_targets_begin_as_the_heads_and_get_no_gradient(model: Any, char_tokenizer: Any) -> None:
    policy = build(model, char_tokenizer)
    said = policy.score(batch())
    torch.testing.assert_close(said.heads["q_values"].detach(), said.heads["target_q_values"])
    assert not said.heads["target_q_values"].requires_grad
    (said.heads["q_values"].sum() + said.heads["q_logprobs"].sum()).backward()
    heads = policy.module.q_heads
    assert all(weight.grad is None for weight in heads.targets.parameters())
    assert all(weight.grad is not None for weight in heads.heads.parameters())
    assert float(policy.model.get_input_embeddings().weight.grad.abs().sum()) > 0


def test_a_sync_moves_targets_by_its_rate(model: Any, char_tokenizer: Any) -> None:
    policy = build(model, char_tokenizer)
    heads = policy.module.q_heads
    with torch.no_grad():
        for weight in heads.heads.parameters():
            weight.fill_(3.0)
        for weight in heads.targets.parameters():
            weight.fill_(1.0)
    sync_targets(policy, 0.25)
    assert all(bool((weight == 1.5).all()) for weight in heads.targets.parameters())
    assert all(bool((weight == 3.0).all()) for weight in heads.heads.parameters())
    sync_targets(policy, 1.0)
    assert all(bool((weight == 3.0).all()) for weight in heads.targets.parameters())


def test_decoding_gives_the_lowest_targets_advantage(model: Any, char_tokenizer: Any) -> None:
    policy = build(model, char_tokenizer)
    heads = policy.module.q_heads
    with torch.no_grad():
        for k, target in enumerate(heads.targets):
            target.fall.weight.mul_(-1.0 - k)
    prompts = [row[:2] for row in ROWS]
    decoder = policy.decoder(prompts, max_new_tokens=2, advantages=True)
    steps = [decoder.start(), decoder.step(torch.tensor([row[2] for row in ROWS]))]
    for row in range(len(ROWS)):
        lowest = torch.minimum(by_hand(policy, heads.targets[0], row), by_hand(policy, heads.targets[1], row))
        for at, said in enumerate(steps):
            if 1 + at < len(lowest):
                values = said.values[row]
                torch.testing.assert_close(said.advantages[row], lowest[1 + at] - values, rtol=1e-4, atol=1e-5)
    assert policy.decoder(prompts, max_new_tokens=2).start().advantages is None


def test_values_and_advantages_are_of_full_precision_where_the_model_runs_in_less(
    model: Any, char_tokenizer: Any
) -> None:
    policy = build(model, char_tokenizer)
    value, heads = policy.module.value.head, policy.module.q_heads
    hidden = torch.randn(6, 16).bfloat16()
    values = value(hidden)
    advantages = heads.advantages(hidden, values)
    with torch.autocast("cpu", torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
        assert torch.equal(value(hidden), values)
        assert torch.equal(heads.advantages(hidden, values), advantages)


def test_q_heads_and_targets_are_restored_from_disk(model: Any, char_tokenizer: Any, tmp_path: Path) -> None:
    policy = build(model, char_tokenizer)
    with torch.no_grad():
        for weight in policy.module.q_heads.parameters():
            weight.add_(torch.randn_like(weight))
    expected = policy.score(batch())
    policy.save_pretrained(tmp_path / "saved")
    other = build(GPT2Config(**GPT), char_tokenizer)
    other.load_pretrained(tmp_path / "saved")
    begun = build(str(tmp_path / "saved"), char_tokenizer)
    for twin in (other, begun):
        said = twin.score(batch())
        for name in ("q_values", "q_logprobs", "target_q_values", "values"):
            torch.testing.assert_close(said.need(name), expected.need(name))


def test_a_policy_with_values_only_loads_those_saved_with_q_heads(
    model: Any, char_tokenizer: Any, tmp_path: Path
) -> None:
    policy = build(model, char_tokenizer)
    with torch.no_grad():
        for weight in policy.module.value.parameters():
            weight.add_(torch.randn_like(weight))
    policy.save_pretrained(tmp_path / "saved")
    plain = build(str(tmp_path / "saved"), char_tokenizer, num=0)
    torch.testing.assert_close(plain.score(batch()).values, policy.score(batch()).values)


def test_without_q_heads_there_are_no_advantages_and_nothing_to_sync(model: Any, char_tokenizer: Any) -> None:
    policy = build(model, char_tokenizer, num=0)
    assert (policy.steers, policy.score(batch()).heads) == (False, {})
    with pytest.raises(ModelError, match="has no head with advantages"):
        policy.decoder([[3]], max_new_tokens=1, advantages=True)


def test_advantages_of_values_from_elsewhere_differ_by_a_number_a_row(model: Any, char_tokenizer: Any) -> None:
    """V has its own layers, which are not decoded; it is equal for all tokens and does not change the sampled ones."""
    trunk, branch = build(copy.deepcopy(model), char_tokenizer), build(model, char_tokenizer, value_layers=1)
    branch.module.q_heads.load_state_dict(trunk.module.q_heads.state_dict())
    prompts = [[3, 5], [4]]
    wanted = trunk.decoder(prompts, max_new_tokens=1, advantages=True).start()
    said = branch.decoder(prompts, max_new_tokens=1, advantages=True).start()
    assert said.values is None
    torch.testing.assert_close(said.advantages - wanted.advantages, wanted.values[:, None].expand(2, 32))
