"""Tests of prompts that join a running batch: samples do not change, and the batch size is bounded."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlcore.errors import DataError
from rlcore.protocols import Decoder, DecodeStep
from rlcore.protocols.learners import joins
from rlcore.sampling import sample
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories
from rlcore_ilql.config import q_heads
from rlcore_testing.small import EOS, make_gpt2, make_llama, make_tokenizer
from rlcore_transformers.cpu import packed_decoder
from rlcore_transformers.cpu import packed_decoder as block_cache
from rlcore_transformers.cpu.packed_decoder import PackedDecoder
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig
from rlcore_transformers.models.policy import ModelPolicy
from rlcore_transformers.sampling import sampler

SIZE, NEW = 4, 14
ENDS = (EOS, 4, 9, 15, 22)
"""A large enough part of the vocabulary for sequences to end at different times."""
LENGTHS = [3, 58, 1, 6, 6, 2, 12, 4, 1, 55, 5, 3, 10, 2, 8, 6, 7, 1]


class Watched:
    """Policy that records the initial and the current number of sequences of its decoders."""

    def __init__(self, policy: ModelPolicy, *, lends: bool = True) -> None:
        self._policy, self._lends = policy, lends
        self.begun: list[int] = []
        self.joined: list[int] = []
        self.rows: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def decoder(self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, waiting: int = 0, **asked: Any) -> Any:
        decoder = self._policy.decoder(prompts, max_new_tokens=max_new_tokens, waiting=waiting, **asked)
        self.begun.append(len(prompts))
        present = list(range(len(prompts)))

        def step(tokens: Tensor) -> DecodeStep:
            assert len(tokens) == len(present)
            self.rows.append(len(present))
            return decoder.step(tokens)

        def keep(rows: Tensor) -> None:
            del present[len(rows) :]
            decoder.keep(rows)

        def join(more: Sequence[Sequence[int]]) -> DecodeStep:
            self.joined.append(len(more))
            present.extend(range(len(more)))
            self.rows.append(len(present))
            return decoder.join(more)  # type: ignore[attr-defined]

        plain = SimpleNamespace(start=decoder.start, step=step, keep=keep)
        if self._lends:
            plain.join = join
            return _Asked(plain, decoder)
        return plain


class _Asked(SimpleNamespace):
    """Decoder that supports joining if the wrapped decoder does."""

    def __init__(self, plain: SimpleNamespace, decoder: Decoder) -> None:
        super().__init__(**vars(plain))
        self._decoder = decoder

    @property
    def joins(self) -> bool:
        return joins(self._decoder) is not None


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the size thresholds, so that small batches run like large ones."""
    monkeypatch.setattr(sampler, "JOIN_SHARE", 8)
    for name, number in {"MIN_JOINED_ROWS": 1, "MIN_ROWS": 1, "MIN_SHARED_PROMPT": 99}.items():
        monkeypatch.setattr(packed_decoder, name, number)
    monkeypatch.setattr(block_cache, "WIDTH", 3)


def make_policy(model: PreTrainedModel | None = None, **options: Any) -> ModelPolicy:
    model = make_gpt2() if model is None else model
    torch.manual_seed(1)
    return build_causal_lm(
        model, CausalLMConfig(**options), tokenizer=make_tokenizer(), value_head=True, heads=q_heads(2)
    )


def make_prompts(lengths: Sequence[int] = LENGTHS) -> list[Prompt]:
    """Make prompts some of which are equal, and some of which share a prefix."""
    return [Prompt("", tuple((i // 3 * 7 + k * 5) % 29 for k in range(length))) for i, length in enumerate(lengths)]


def draw(policy: Any, prompts: Sequence[Prompt] | None = None, **options: Any) -> Trajectories:
    given = {name: options.pop(name) for name in ("logit_mask", "on_batch") if name in options}
    sampling = SamplingConfig(**{"max_new_tokens": NEW, "batch_size": SIZE, "eos_token_ids": ENDS, **options})
    generator = torch.Generator().manual_seed(5)
    return sample(policy, make_prompts() if prompts is None else prompts, sampling, generator=generator, **given)


def padded(policy: ModelPolicy, prompts: Sequence[Prompt] | None = None, **options: Any) -> Trajectories:
    """Sample with the padded decoder, all prompts at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlcore_transformers.cpu.packed_decoder.pays", lambda *_, **__: False)
        return draw(policy, prompts, **{**options, "batch_size": 0})


def assert_same(got: Trajectories, expected: Trajectories) -> None:
    for name in ("tokens", "mask", "action_mask", "ended"):
        assert getattr(got, name).equal(getattr(expected, name)), name
    assert set(got.columns) == set(expected.columns)
    for name, column in expected.columns.items():
        torch.testing.assert_close(got[name], column, atol=1e-5, rtol=0)


def allowing(*, end_after: int) -> Tensor:
    """Return a mask that allows all but a few tokens after each token, and EOS only from `end_after` on."""
    mask = torch.rand(32, 32, generator=torch.Generator().manual_seed(2)) < 0.6
    mask[:, EOS] = torch.arange(32) >= end_after
    mask[:, 0] = True
    return mask


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "not too short": {"min_new_tokens": 5},
    "stop sequences": {"stop_sequences": ("e", "th", "an")},
    "mask": {"logit_mask": allowing(end_after=10)},
    "mask, not too short": {"logit_mask": allowing(end_after=4), "min_new_tokens": 4},
    "greedy": {"temperature": 0.0, "min_new_tokens": 2},
    "nucleus": {"temperature": 0.8, "top_p": 0.9},
    "steered": {"beta": 2.0},
}


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_prompts_that_join_a_batch_do_not_change_samples(family: str, options: dict[str, Any]) -> None:
    policy = make_policy({"gpt2": make_gpt2, "llama": make_llama}[family]())
    watched = Watched(policy)
    got, expected = draw(watched, **options), padded(policy, **options)
    assert_same(got, expected)
    assert "values" in got.columns
    assert len(set(expected.num_actions.tolist())) > 2
    assert len(watched.joined) > 1
    assert sum(watched.begun) + sum(watched.joined) == len(LENGTHS)


@pytest.mark.slow
@pytest.mark.parametrize("share", [2, 4, 100])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_refilled_sampling_gives_the_same_samples_for_every_batch_size(
    size: int, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "JOIN_SHARE", share)
    policy = make_policy()
    watched = Watched(policy)
    assert_same(draw(watched, batch_size=size), padded(policy))
    assert max(watched.rows) <= size
    assert bool(watched.joined) is (size > 1)


@pytest.mark.parametrize("width", [1, 2, 5, 32])
@pytest.mark.parametrize("leave_share", [3, 8])
def test_refilled_sampling_gives_the_same_samples_for_every_block_width(
    width: int, leave_share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_cache, "WIDTH", width)
    monkeypatch.setattr(sampler, "LEAVE_SHARE", leave_share)
    policy = make_policy(make_llama())
    watched = Watched(policy)
    assert_same(draw(watched), padded(policy))
    assert watched.joined


def test_freed_rows_are_filled_while_prompts_wait() -> None:
    watched = Watched(make_policy())
    batch = draw(watched, make_prompts([4] * 40), batch_size=8)
    assert watched.begun == [8]
    num_steps = len(watched.rows) - len(watched.joined)
    assert num_steps < 1.5 * int(batch.num_actions.sum()) / 8 + 8


def test_a_batch_waits_until_enough_may_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "JOIN_SHARE", 2)
    watched = Watched(make_policy())
    draw(watched, make_prompts([4] * 40), batch_size=8)
    assert len(watched.joined) > 2
    assert all(joined >= 4 for joined in watched.joined[:-1])


def test_cache_columns_of_finished_sequences_are_freed() -> None:
    policy, columns = make_policy(), []
    real = PackedDecoder.step

    def step(decoder: PackedDecoder, tokens: Tensor) -> DecodeStep:
        said = real(decoder, tokens)
        columns.append(sum(keys.shape[2] for keys, _ in decoder.cache.blocks[0]))
        return said

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PackedDecoder, "step", step)
        draw(policy, make_prompts([4] * 40))
    assert len(columns) > 50
    assert max(columns) < 2 * (4 + NEW)


@pytest.mark.parametrize("count", [1, SIZE - 1, SIZE])
def test_a_batch_that_takes_all_prompts_is_not_refilled(count: int) -> None:
    policy, prompts = make_policy(), make_prompts()[:count]
    watched = Watched(policy)
    assert_same(draw(watched, prompts), padded(policy, prompts))
    assert (watched.begun, watched.joined) == ([count], [])


def test_a_decoder_without_joining_is_not_refilled() -> None:
    policy = make_policy()
    stranger = Watched(policy, lends=False)
    assert_same(draw(stranger), padded(policy))
    assert (stranger.begun, stranger.joined) == ([4, 4, 4, 4, 2], [])


@pytest.mark.parametrize(
    "changed",
    [{"MIN_ROWS": 10**6, "MIN_JOINED_ROWS": 5}, {"MIN_SHARED_PROMPT": 1}],
    ids=["padded", "shared prompts"],
)
def test_only_a_packed_decoder_with_blocks_is_refilled(
    changed: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, number in changed.items():
        monkeypatch.setattr(packed_decoder, name, number)
    policy, prompts = make_policy(), [prompt for prompt in make_prompts([4] * 6) for _ in range(2)]
    watched = Watched(policy)
    assert_same(draw(watched, prompts), padded(policy, prompts))
    assert (watched.begun, watched.joined) == ([4, 4, 4], [])


def test_prompts_join_a_decoder_of_narrow_weights() -> None:
    policy = make_policy(sampling_dtype="bfloat16")
    watched = Watched(policy)
    batch = draw(watched)
    assert watched.joined
    assert set(batch.columns) == {"sampling_logprobs"}


@pytest.mark.parametrize("lends", [True, False])
def test_every_row_of_a_refilled_batch_is_passed_to_the_callback_once(lends: bool) -> None:
    told: list[tuple[list[int], Trajectories]] = []
    watched = Watched(make_policy(), lends=lends)
    whole = draw(watched, on_batch=lambda places, batch: told.append((places, batch)))
    assert bool(watched.joined) is lends
    assert sorted(place for places, _ in told for place in places) == list(range(len(LENGTHS)))
    assert all(SIZE <= len(places) < 2 * SIZE for places, _ in told[:-1])
    for places, batch in told:
        expected = whole.rows(torch.tensor(places))
        assert batch.action_tokens == expected.action_tokens
        assert batch.ended.equal(expected.ended)
        torch.testing.assert_close(batch["logprobs"][batch.mask], expected["logprobs"][expected.mask])


def test_finished_responses_are_passed_to_the_callback_while_others_are_sampled() -> None:
    watched, steps = Watched(make_policy()), []
    draw(watched, make_prompts([4] * 40), on_batch=lambda places, batch: steps.append(len(watched.rows)))
    assert watched.begun == [SIZE]
    assert len(steps) > 5
    assert steps[0] < len(watched.rows) / 2


def test_a_mask_without_allowed_tokens_is_refused_for_a_prompt_that_joined() -> None:
    mask = torch.ones(32, 32, dtype=torch.bool)
    mask[7] = False
    prompts = [*make_prompts([4] * 9), Prompt("", (7,))]
    with pytest.raises(DataError, match=r"logit_mask\[7\]: allows no token after token 7 \('h'\), and a sequence"):
        draw(make_policy(), prompts, logit_mask=mask | (torch.arange(32) != 7)[:, None] & (torch.arange(32) != 7))
