"""Tests that keys and values are kept from turn to turn, and that this changes no result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import pytest
import torch
from env_games import Echo, make_player, make_policy, read_prompts
from transformers import GPTNeoConfig, GPTNeoForCausalLM

from rlcore.protocols import Policy
from rlcore.settings import SamplingConfig
from rlcore.types import Episodes
from rlcore_environments.turn_cache import TurnCache
from rlcore_testing.small import make_tokenizer
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig, SpeedConfig
from rlcore_transformers.sampling.sampler import sample

ROWS = ["ab", "cde", "f", "ab", "a b c d e f g h", "ab"]


def play(policy: Policy, *, keep: bool, size: int = 0) -> Episodes:
    player = make_player(Echo, data={"episodes": {"keep_states": keep}})
    prompts = read_prompts(player, policy, ROWS)
    sampling = SamplingConfig(max_new_tokens=5, batch_size=size, stop_sequences=("b",))
    return player.sampler(sample)(policy, prompts, sampling, row_seeds=list(range(len(ROWS))))


@contextmanager
def counting(policy: Any) -> Iterator[list[int]]:
    """Collect the number of tokens of each forward pass of the policy's model."""
    counts: list[int] = []
    hook = policy.model.register_forward_pre_hook(
        lambda module, args, kwargs: counts.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    try:
        yield counts
    finally:
        hook.remove()


@pytest.mark.slow
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("size", [0, 2])
@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_kept_states_change_no_token_and_no_log_prob(kind: str, chat: bool, size: int, packed: bool) -> None:
    policy: Any = make_policy(kind, chat=chat, value_head=True)
    policy.module.layout = attrs.evolve(policy.module.layout, speed=SpeedConfig(packed_decoding=packed))
    kept, read = play(policy, keep=True, size=size), play(policy, keep=False, size=size)
    assert torch.equal(kept.tokens, read.tokens)
    assert torch.equal(kept.action_mask, read.action_mask)
    for name in ("logprobs", "values", "rewards"):
        torch.testing.assert_close(kept[name], read[name], atol=2e-5, rtol=0)
    score = policy.score(kept.plain)
    chosen = kept.action_mask
    torch.testing.assert_close(kept["logprobs"][chosen], score.logprobs[chosen], atol=2e-5, rtol=0)


def test_a_later_turn_reads_only_what_was_added_since_the_turn_before() -> None:
    policy = make_policy()
    with counting(policy) as kept:
        batch = play(policy, keep=True)
    with counting(policy) as read:
        play(policy, keep=False)
    turns = max(int(number) for number in batch.numbers["episode/turns"] if number is not None)
    assert turns == 3
    # Besides the tokens of the first prompts and of the policy, only those of the environment, with their padding.
    told = int((batch.mask & ~batch.action_mask).sum())
    assert sum(kept) < sum(read)
    assert sum(kept) <= 2 * (told + int(batch.action_mask.sum()))
    assert len(kept) == len(read)


def test_a_model_whose_windows_count_columns_reads_every_turn_anew() -> None:
    config = GPTNeoConfig(
        vocab_size=32, hidden_size=16, num_layers=2, num_heads=2, attention_types=[[["global", "local"], 1]],
        window_size=6, max_position_embeddings=128, resid_dropout=0.0, embed_dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = GPTNeoForCausalLM(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4)
    policy = build_causal_lm(model, CausalLMConfig(), tokenizer=make_tokenizer())
    batch = play(policy, keep=True)
    score = policy.score(batch.plain)
    chosen = batch.action_mask
    torch.testing.assert_close(batch["logprobs"][chosen], score.logprobs[chosen], atol=1e-4, rtol=0)


def test_rows_of_a_cache_trade_places_and_are_freed_without_changing_what_is_attended_to() -> None:
    """Against attention over each row's own keys and values, in which two query heads share a key head."""
    torch.manual_seed(0)
    prompts, copies, lengths = 2, [0, 1, 0, 1], [3, 2, 3, 2]
    layer = (torch.randn(prompts, 2, 3, 8), torch.randn(prompts, 2, 3, 8))
    held = {
        name: [part[copy, :, :length] for part in layer]
        for name, (copy, length) in enumerate(zip(copies, lengths, strict=True))
    }
    cache = TurnCache([layer], copies, [0, 1, 2, 3], [[5] * length for length in lengths])
    for names, counts in (([0, 1, 2, 3], [1, 4, 2, 3]), ([3, 1, 2], [1, 1, 1]), ([3], [2]), ([3, 2, 1], [3, 1, 2])):
        if len(names) == 1:
            cache.drop(0)
        rows = cache.begin(names).tolist()
        by_row = [counts[rows.index(row)] for row in range(len(rows))]
        cache.reserve(max(counts))
        cache.read_next([[7] * count for count in by_row])
        cache.calls[0] += 1
        query, key, value = torch.randn(1, 4, sum(counts), 8), *torch.randn(2, 1, 2, sum(counts), 8)
        found = cache.attend(query, key, value, dropout=0.0, scaling=None)[0]
        ends = torch.tensor(by_row).cumsum(0).tolist()
        for name, row, count in zip(names, rows, counts, strict=True):
            new = slice(ends[row] - count, ends[row])
            held[name] = [
                torch.cat([old, part[0, :, new]], 1) for old, part in zip(held[name], (key, value), strict=True)
            ]
            for i in range(count):
                seen = held[name][0].shape[1] - count + i + 1
                keys, values = (part[:, :seen].repeat_interleave(2, 0) for part in held[name])
                weights = (query[0, :, ends[row] - count + i, None] @ keys.transpose(1, 2) / 8**0.5).softmax(2)
                torch.testing.assert_close(found[ends[row] - count + i], (weights @ values)[:, 0], atol=1e-5, rtol=0)
