"""Tests of token sampling: distribution, log-probs and stopping."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2LMHeadModel, PreTrainedModel, PreTrainedTokenizerFast

from rlcore.sampling import sample
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories
from rlcore_transformers.models.decoding.causal_decoder import CausalDecoder

LETTERS = "abcdefghijklmnopqrstuvwxyz .!?"
EOS, PAD = 30, 31


class TinyPolicy:
    """Minimal policy for sampling."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast | None = None,
        value_head: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.module, self.tokenizer = model, tokenizer
        self._heads = None if value_head is None else lambda hidden: (value_head(hidden), None)
        self.eos_token_ids: tuple[int, ...] = (EOS,)
        self.max_length = 64
        self.device = torch.device("cpu")
        self.batches: list[int] = []

    def decoder(
        self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, advantages: bool = False
    ) -> CausalDecoder:
        self.batches.append(len(prompts))
        return CausalDecoder(self.module, prompts, max_new_tokens=max_new_tokens, heads=self._heads, pad_id=PAD)


@pytest.fixture
def policy(tiny_model: PreTrainedModel, char_tokenizer: PreTrainedTokenizerFast) -> TinyPolicy:
    return TinyPolicy(tiny_model, char_tokenizer)


@pytest.fixture
def gpt2(tiny_gpt2: GPT2LMHeadModel, char_tokenizer: PreTrainedTokenizerFast) -> TinyPolicy:
    return TinyPolicy(tiny_gpt2, char_tokenizer)


def prompts_of(*texts: str) -> list[Prompt]:
    return [Prompt(text=text, tokens=tuple(LETTERS.index(letter) for letter in text)) for text in texts]


def draw_many(policy: TinyPolicy, texts: Sequence[str], *, seed: int = 0, **options: object) -> Trajectories:
    sampling = SamplingConfig(**{"max_new_tokens": 12, **options})
    return sample(policy, prompts_of(*texts), sampling, generator=torch.Generator().manual_seed(seed))


def chosen(batch: Trajectories) -> list[list[int]]:
    return [row[mask].tolist() for row, mask in zip(batch.tokens, batch.action_mask, strict=True)]


def always(policy: TinyPolicy, script: dict[int, int]) -> None:
    """Make the model choose `script[token]` after `token`, whatever the earlier context."""
    model = policy.module
    with torch.no_grad():
        for parameter in model.transformer.h.parameters():
            parameter.zero_()
        model.transformer.wpe.weight.zero_()
        model.lm_head.weight = nn.Parameter(torch.zeros(32, 16))
        model.transformer.wte.weight = nn.Parameter(torch.randn(32, 16, generator=torch.Generator().manual_seed(0)))
        features = model.transformer.ln_f(model.transformer.wte.weight)
        wanted = torch.full((32, 32), -20.0)
        for token in range(32):
            wanted[token, script.get(token, 0)] = 20.0
        keys = torch.tensor(sorted(script))
        model.lm_head.weight.copy_((torch.linalg.pinv(features[keys]) @ wanted[keys]).T)


MIXED = ["a", "hello", "the cat sat", "b", "a", "zz."]


def test_logprobs_are_the_tempered_policys_and_values_its_heads(tiny_model: PreTrainedModel) -> None:
    head = nn.Linear(16, 1)
    policy = TinyPolicy(tiny_model, None, lambda hidden: head(hidden)[:, 0])
    policy.tokenizer = type("Padded", (), {"pad_token_id": PAD})
    batch = draw_many(policy, MIXED, temperature=0.7, top_k=8, max_new_tokens=20)
    for i in range(len(batch)):
        tokens = batch.tokens[i][batch.mask[i]]
        with torch.no_grad():
            said = tiny_model(tokens[None], output_hidden_states=True)
        at = batch.action_mask[i].nonzero()[:, 0]
        logprobs = (said.logits[0].double() / 0.7).log_softmax(-1)[at - 1, batch.tokens[i, at]]
        torch.testing.assert_close(batch["logprobs"][i, at].double(), logprobs, atol=1e-5, rtol=0)
        values = head(said.hidden_states[-1][0])[at - 1, 0]
        torch.testing.assert_close(batch["values"][i, at], values, atol=1e-5, rtol=0)
        tempered = said.logits[0].double() / 0.7
        tempered = tempered.masked_fill(tempered < tempered.topk(8).values[:, -1:], float("-inf")).log_softmax(-1)
        expected = tempered[at - 1, batch.tokens[i, at]]
        torch.testing.assert_close(batch["sampling_logprobs"][i, at].double(), expected, atol=1e-5, rtol=0)
    for name in ("logprobs", "sampling_logprobs", "values"):
        assert not batch[name].requires_grad
        assert (batch[name][~batch.action_mask] == 0).all()


def test_plain_sampling_stores_one_kind_of_log_probs(policy: TinyPolicy) -> None:
    for options in ({}, {"temperature": 0.7}):
        assert set(draw_many(policy, MIXED, **options).columns) == {"logprobs"}


def test_masks_tell_prompt_from_choice_from_padding(policy: TinyPolicy) -> None:
    batch = draw_many(policy, MIXED)
    width = batch.tokens.shape[1]
    for i, prompt in enumerate(prompts_of(*MIXED)):
        first, count = len(prompt.tokens), int(batch.num_actions[i])
        assert batch.tokens[i, :first].tolist() == list(prompt.tokens)
        assert batch.action_mask[i].tolist() == [False] * first + [True] * count + [False] * (width - first - count)
        assert batch.mask[i].tolist() == [True] * (first + count) + [False] * (width - first - count)
    assert int(batch.mask.sum(1).max()) == width


def test_first_tokens_are_sampled_with_the_models_probabilities(policy: TinyPolicy) -> None:
    from scipy import stats

    batch = draw_many(policy, ["cat"] * 4000 + ["o"] * 4000, max_new_tokens=1, seed=11)
    for part, text in ((slice(0, 4000), "cat"), (slice(4000, None), "o")):
        with torch.no_grad():
            wanted = policy.module(torch.tensor([prompts_of(text)[0].tokens])).logits[0, -1].double().softmax(-1)
        counts = np.bincount(batch.tokens[part][batch.action_mask[part]].numpy(), minlength=32)
        expected = wanted.numpy() * 4000
        common = expected >= 5
        observed, expected = counts[common], expected[common]
        assert stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-3


def test_the_same_seed_repeats_the_samples_and_another_does_not(policy: TinyPolicy) -> None:
    assert chosen(draw_many(policy, MIXED)) == chosen(draw_many(policy, MIXED))
    assert chosen(draw_many(policy, MIXED)) != chosen(draw_many(policy, MIXED, seed=1))
    torch.manual_seed(5)
    first = sample(policy, prompts_of(*MIXED), SamplingConfig(max_new_tokens=12))
    torch.manual_seed(5)
    assert chosen(first) == chosen(sample(policy, prompts_of(*MIXED), SamplingConfig(max_new_tokens=12)))


@pytest.mark.parametrize("share", [0, 1_000_000])
def test_removing_finished_sequences_does_not_change_samples(
    policy: TinyPolicy, monkeypatch: pytest.MonkeyPatch, share: int
) -> None:
    texts, options = MIXED * 4, {"max_new_tokens": 40, "eos_token_ids": (1, 5, EOS)}
    usual = draw_many(policy, texts, **options)
    monkeypatch.setattr("rlcore_transformers.sampling.sampler.LEAVE_SHARE", share)
    other = draw_many(policy, texts, **options)
    assert len(set(usual.num_actions.tolist())) > 4
    assert chosen(usual) == chosen(other)
    torch.testing.assert_close(usual["logprobs"], other["logprobs"], atol=1e-5, rtol=0)
    assert usual.ended.tolist() == other.ended.tolist()


def test_splitting_into_batches_does_not_change_samples(policy: TinyPolicy) -> None:
    whole, split = draw_many(policy, MIXED * 2), draw_many(policy, MIXED * 2, batch_size=5)
    assert policy.batches == [12, 5, 5, 2]
    assert chosen(whole) == chosen(split)
    torch.testing.assert_close(whole["logprobs"], split["logprobs"], atol=1e-5, rtol=0)


def test_the_order_of_prompts_changes_no_greedy_output(policy: TinyPolicy) -> None:
    forward = chosen(draw_many(policy, MIXED, temperature=0.0))
    assert forward == chosen(draw_many(policy, MIXED[::-1], temperature=0.0))[::-1]


def test_every_eos_id_ends_a_response_and_is_part_of_it(gpt2: TinyPolicy) -> None:
    always(gpt2, {0: 1, 1: 2, 2: 3, 5: 7, 7: EOS, 9: 9})
    batch = draw_many(gpt2, ["a", "f", "j"], temperature=0.0, eos_token_ids=(3, EOS), max_new_tokens=5)
    assert chosen(batch) == [[1, 2, 3], [7, EOS], [9] * 5]
    assert batch.ended.tolist() == [True, True, False]
    assert draw_many(gpt2, ["a", "f"], temperature=0.0, max_new_tokens=2).ended.tolist() == [False, True]


def test_sampling_works_with_eos_as_padding(
    tiny_gpt2: GPT2LMHeadModel, char_tokenizer: PreTrainedTokenizerFast
) -> None:
    char_tokenizer.pad_token = char_tokenizer.eos_token
    policy = TinyPolicy(tiny_gpt2, char_tokenizer)
    always(policy, {0: 1, 1: EOS, 2: 3, 3: 4, 4: EOS})
    batch = draw_many(policy, ["a", "c"], temperature=0.0)
    assert chosen(batch) == [[1, EOS], [3, 4, EOS]]
    assert batch.mask.tolist() == [[True, True, True, False], [True] * 4]
    assert batch.ended.all()


def test_eos_waits_for_the_least_number_of_tokens(policy: TinyPolicy) -> None:
    eos = tuple(range(16, 32))
    batch = draw_many(policy, MIXED * 10, min_new_tokens=4, eos_token_ids=eos)
    assert all(len(row) >= 5 and not set(row[:4]) & set(eos) for row in chosen(batch))
    assert any(len(row) < 12 for row in chosen(batch))
    assert all(len(row) >= 4 for row in chosen(draw_many(policy, MIXED, min_new_tokens=4, temperature=0.0)))


@pytest.mark.parametrize("size", [0, 5])
def test_each_finished_sub_batch_is_passed_to_the_callback_once(policy: TinyPolicy, size: int) -> None:
    told: list[tuple[list[int], Trajectories]] = []
    sampling = SamplingConfig(max_new_tokens=30, batch_size=size, eos_token_ids=(1, 5, EOS), temperature=0.8)
    whole = sample(
        policy, prompts_of(*MIXED * 2), sampling, generator=torch.Generator().manual_seed(3),
        on_batch=lambda rows, batch: told.append((rows, batch)),
    )  # fmt: skip
    assert sorted(row for rows, _ in told for row in rows) == list(range(12))
    assert len(told) == (3 if size else 1)
    for rows, part in told:
        for i, row in enumerate(rows):
            count = int(whole.mask[row].sum())
            assert part.mask[i].tolist() == [True] * count + [False] * (part.mask.shape[1] - count)
            assert part.action_mask[i, :count].tolist() == whole.action_mask[row, :count].tolist()
            assert part.tokens[i, :count].tolist() == whole.tokens[row, :count].tolist()
            assert bool(part.ended[i]) == bool(whole.ended[row])
            for name in whole.columns:
                assert torch.equal(part[name][i, :count], whole[name][row, :count])
