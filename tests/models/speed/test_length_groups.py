"""Tests of length groups: a padded pass in groups of similar length equals one pass over the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
import torch
from tiny import GPT, make_causal
from torch import Tensor
from transformers import BloomConfig, GPTJConfig, PreTrainedModel

from rlcore.types import PolicyOutputs, Trajectories
from rlcore_ilql.config import q_heads
from rlcore_testing.small import make_gpt2, make_t5, make_tokenizer
from rlcore_transformers.models.causal import build_causal_lm, build_seq2seq_lm
from rlcore_transformers.models.model_options import CausalLMConfig, Seq2SeqLMConfig, SpeedConfig
from rlcore_transformers.models.policy import ModelPolicy
from rlcore_transformers.models.speed import activations
from rlcore_transformers.models.speed.activations import cut


def cost(lengths: list[int], cuts: tuple[int, ...], price: int) -> int:
    ends = [*cuts[1:], len(lengths)]
    return sum((end - start) * lengths[start] + price for start, end in zip(cuts, ends, strict=True))


@pytest.mark.parametrize("price", [0, 1, 3, 10, 40, 1000])
def test_length_groups_have_the_least_cost_of_all_divisions(price: int) -> None:
    generator = torch.Generator().manual_seed(price)
    for count in (1, 2, 5, 9):
        lengths = sorted(torch.randint(1, 30, (count,), generator=generator).tolist(), reverse=True)
        every = [(0, *at) for size in range(count) for at in combinations(range(1, count), size)]
        assert cost(lengths, tuple(cut(lengths, price)), price) == min(cost(lengths, cuts, price) for cuts in every)


def test_length_groups_equal_those_worked_by_hand() -> None:
    assert cut([20, 20, 5, 5, 5], 10) == [0, 2]  # 20 + 20 + 10, and 15 + 10: 75; whole: 110
    assert cut([20, 18, 16], 10) == [0]  # 60 + 10; a further split saves 2, 4 or 6
    assert cut([100, 50, 10], 10) == [0, 1, 2]
    assert cut([7, 7, 7], 10) == [0]
    assert cut([], 10) == [0]


def gptj() -> PreTrainedModel:
    return make_causal(GPTJConfig(**GPT, rotary_dim=4))


def bloom() -> PreTrainedModel:
    return make_causal(
        BloomConfig(vocab_size=32, hidden_size=16, n_layer=4, n_head=4, bos_token_id=30, eos_token_id=30)
    )


def causal(make: Callable[[], PreTrainedModel], **asked: Any) -> ModelPolicy:
    torch.manual_seed(1)
    return build_causal_lm(
        make(), CausalLMConfig(speed=SpeedConfig(packing=False)), tokenizer=make_tokenizer(), **asked
    )


def seq2seq(**asked: Any) -> ModelPolicy:
    torch.manual_seed(1)
    return build_seq2seq_lm(make_t5(), Seq2SeqLMConfig(), tokenizer=make_tokenizer(), **asked)


POLICIES: dict[str, Callable[[], ModelPolicy]] = {
    "gptj": lambda: causal(gptj, value_head=True, reference=True),
    "bloom": lambda: causal(bloom, value_head=True, reference=True),
    "gpt2 padded, with Q-heads": lambda: causal(make_gpt2, value_head=True, heads=q_heads(2), reference=True),
    "t5": lambda: seq2seq(value_head=True, reference=True),
}


def ragged(*, left: bool = False) -> Trajectories:
    generator = torch.Generator().manual_seed(3)
    lengths = [3, 20, 5, 19, 2, 11, 4, 20]
    rows = [torch.randint(0, 28, (length,), generator=generator).tolist() for length in lengths]
    chosen = [[False] + [i % 3 > 0 or i == length - 1 for i in range(1, length)] for length in lengths]
    batch = Trajectories.stack(rows, chosen)
    if left:
        width = max(lengths) + 2
        place = torch.stack([(torch.arange(width) - (width - length)) % width for length in lengths])
        padded = batch.each(lambda array: torch.nn.functional.pad(array, (0, 2)) if array.dim() > 1 else array)
        batch = padded.each(lambda array: array.gather(1, place) if array.dim() > 1 else array)
        assert batch.mask[:, -1].all()
    return batch


def told(policy: ModelPolicy, batch: Trajectories) -> tuple[PolicyOutputs, PolicyOutputs, dict[str, Tensor]]:
    """Return the outputs of the policy and its reference for a batch, and the gradients of their sum."""
    said = policy.score(batch, entropy=True, logits=True)
    assert said.values is not None
    assert said.entropy is not None
    weight = torch.linspace(-1, 1, batch.tokens.numel()).reshape(batch.tokens.shape)
    loss = ((said.logprobs + said.values**2 + said.entropy) * weight).sum()
    if said.heads:
        loss = loss + ((said.heads["q_values"] ** 2 + said.heads["q_logprobs"]) * weight).sum()
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in policy.module.named_parameters() if p.grad is not None}
    policy.module.zero_grad()
    return said, policy.reference_score(batch, logits=True), gradients


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("name", POLICIES)
def test_length_groups_give_the_outputs_of_one_pass(name: str, left: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, batch, passes = POLICIES[name](), ragged(left=left), list[int]()
    policy.model.register_forward_pre_hook(lambda *_: passes.append(1))
    if isinstance(policy.reference, PreTrainedModel):
        policy.reference.register_forward_pre_hook(lambda *_: passes.append(1))
    monkeypatch.setattr(activations, "PASS", 10**6)
    whole = told(policy, batch)
    assert len(passes) == 2
    monkeypatch.setattr(activations, "PASS", 4)
    grouped = told(policy, batch)
    assert len(passes) >= 2 + 2 * 3
    for said, expected in zip(grouped[:2], whole[:2], strict=True):
        assert said.heads.keys() == expected.heads.keys()
        for field in ("logprobs", "values", "entropy", "logits", *expected.heads):
            one, other = (
                each.heads[field] if field in each.heads else getattr(each, field) for each in (said, expected)
            )
            assert (one is None) == (other is None), field
            if one is not None:
                assert torch.allclose(one, other, rtol=1e-5, atol=1e-5), field
    scale = max(float(gradient.abs().max()) for gradient in whole[2].values())
    assert scale > 0.01
    assert grouped[2].keys() == whole[2].keys()
    for parameter, gradient in whole[2].items():
        assert float((grouped[2][parameter] - gradient).abs().max()) < 1e-5 * max(1.0, scale), parameter


def test_a_packed_batch_is_not_divided_into_length_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activations, "PASS", 0)
    torch.manual_seed(1)
    policy, passes = build_causal_lm(make_gpt2(), CausalLMConfig(), tokenizer=make_tokenizer()), list[int]()
    policy.model.register_forward_pre_hook(lambda *_: passes.append(1))
    policy.score(ragged())
    assert len(passes) == 1


@torch.no_grad()
def test_a_length_group_without_chosen_tokens_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, batch = POLICIES["gptj"](), ragged()
    batch.action_mask[4] = False
    batch.action_mask[0] = False
    monkeypatch.setattr(activations, "PASS", 10**6)
    whole = policy.score(batch).logprobs
    monkeypatch.setattr(activations, "PASS", 0)
    assert torch.allclose(policy.score(batch).logprobs, whole, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("name", POLICIES)
def test_length_groups_score_the_value_after_the_last_token(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, batch = POLICIES[name](), ragged().extended()
    monkeypatch.setattr(activations, "PASS", 10**6)
    whole = policy.score(batch).values
    monkeypatch.setattr(activations, "PASS", 0)
    grouped = policy.score(batch).values
    assert whole is not None
    assert grouped is not None
    assert torch.allclose(grouped, whole, atol=1e-5)
