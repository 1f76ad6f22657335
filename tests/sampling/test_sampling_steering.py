"""Tests of sampling with advantage weights and with logit masks; expected numbers are computed by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rlcore.errors import ConfigError, DataError, ModelError
from rlcore.protocols import DecodeStep
from rlcore.sampling import sample
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories
from rlcore_ilql.config import q_heads
from rlcore_ilql.q_heads import sync_targets
from rlcore_testing.small import EOS, LETTERS, make_gpt2, make_tokenizer
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig
from rlcore_transformers.models.policy import ModelPolicy

NO, YES = False, True
CPU = torch.device("cpu")
SPELLER = SimpleNamespace(pad_token_id=0, decode=lambda rows, **_: ["abc"[row[0]] for row in rows])
LN2 = math.log(2.0)


@attrs.define
class Tables:
    """Policy whose logits and advantages are rows of tables, indexed by the last token."""

    logits: Tensor
    advantages: Tensor | None = None
    eos_token_ids: tuple[int, ...] = ()
    max_length: int = 0
    asked: list[bool] = attrs.field(factory=list)
    device: torch.device = CPU
    steers: bool = True
    module: nn.Module = attrs.field(factory=lambda: nn.Linear(1, 1))
    tokenizer: Any = SPELLER

    def decoder(self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, advantages: bool = False) -> Any:
        self.asked.append(advantages)
        policy = self

        class Reader:
            last = torch.tensor([prompt[-1] for prompt in prompts])

            def start(self) -> DecodeStep:
                given = policy.advantages[self.last] if advantages and policy.advantages is not None else None
                return DecodeStep(policy.logits[self.last], None, given)

            def step(self, tokens: Tensor) -> DecodeStep:
                self.last = tokens
                return self.start()

            def keep(self, rows: Tensor) -> None:
                self.last = self.last[rows]

        return Reader()


def draw(policy: Any, last: Sequence[int], mask: Any = None, **options: Any) -> Trajectories:
    sampling = SamplingConfig(**{"max_new_tokens": 1, **options})
    prompts = [Prompt("", (token,)) for token in last]
    given = {} if mask is None else {"logit_mask": torch.as_tensor(mask)}
    return sample(policy, prompts, sampling, generator=torch.Generator().manual_seed(3), **given)


def probabilities(batch: Trajectories, column: str) -> dict[int, float]:
    """Return the probability of each token as a first token, from a column of many samples."""
    at = batch.action_mask & (batch.action_mask.cumsum(1) == 1)
    pairs = zip(batch.tokens[at].tolist(), batch[column][at].exp().tolist(), strict=True)
    return {token: round(value, 5) for token, value in pairs}


# pi = (1/2, 1/4, 1/4), exp(beta A) = (1, 2, 4): weights (1/2, 1/2, 1), so the distribution is (1/4, 1/4, 1/2).
STEERED = Tables(torch.tensor([[LN2, 0.0, 0.0]]).repeat(3, 1) + 5.0, torch.tensor([[0.0, 0.5, 1.0]]).repeat(3, 1) - 7.0)
BETA = 2 * LN2


@pytest.mark.parametrize(
    ("options", "drawn"),
    [
        ({}, {0: 1 / 4, 1: 1 / 4, 2: 1 / 2}),
        ({"beta": 2 * BETA}, {0: 1 / 11, 1: 2 / 11, 2: 8 / 11}),  # weights (1/2, 1, 4)
        ({"beta": -BETA}, {0: 8 / 11, 1: 2 / 11, 2: 1 / 11}),  # weights (1/2, 1/8, 1/16)
        ({"temperature": 0.5}, {0: 1 / 6, 1: 1 / 6, 2: 4 / 6}),  # weights squared: advantages are divided as well
        ({"top_k": 1}, {2: 1.0}),
        ({"top_p": 0.5}, {2: 1.0}),
    ],
)
def test_steered_sampling_draws_from_the_policy_times_the_exponential_of_advantages(
    options: dict[str, Any], drawn: dict[int, float]
) -> None:
    from scipy import stats

    batch = draw(STEERED, [0] * 4000, **{"beta": BETA, **options})
    wanted = {token: pytest.approx(share, abs=2e-5) for token, share in drawn.items()}
    assert probabilities(batch, "sampling_logprobs") == wanted
    policy = {0: 2 / 3, 1: 1 / 6, 2: 1 / 6} if "temperature" in options else {0: 0.5, 1: 0.25, 2: 0.25}
    assert probabilities(batch, "logprobs") == {token: pytest.approx(policy[token], abs=2e-5) for token in drawn}
    counts = np.bincount(batch.tokens[:, 1].numpy(), minlength=3)
    assert counts[[token for token in range(3) if token not in drawn]].sum() == 0
    expected = [share * 4000 for share in drawn.values()]
    assert len(drawn) == 1 or stats.chisquare(counts[list(drawn)], expected).pvalue > 1e-3


def test_steered_greedy_sampling_takes_the_likeliest_token() -> None:
    assert draw(STEERED, [0], temperature=0.0).tokens[0, 1] == 0
    assert draw(STEERED, [0], temperature=0.0, beta=BETA).tokens[0, 1] == 2


def test_advantages_are_computed_only_if_beta_is_not_zero() -> None:
    STEERED.asked.clear()
    for beta in (0.0, 1.0):
        draw(STEERED, [0], beta=beta)
    assert STEERED.asked == [False, True]


def test_a_policy_without_q_heads_cannot_be_steered() -> None:
    with pytest.raises(ConfigError, match=r"gen.beta = 4: .*this policy has none; leave beta at 0"):
        draw(Tables(STEERED.logits, steers=False), [0], beta=4.0)
    with pytest.raises(ModelError, match="decoder returned no advantages"):
        draw(Tables(STEERED.logits), [0], beta=4.0)


@pytest.fixture
def q_policy() -> ModelPolicy:
    torch.manual_seed(1)
    return build_causal_lm(make_gpt2(), CausalLMConfig(), tokenizer=make_tokenizer(), value_head=True, heads=q_heads(2))


TEXTS = ["a", "hello", "the cat sat", "b", "a", "zz."]


def continued(policy: ModelPolicy, mask: Tensor | None = None, **options: Any) -> Trajectories:
    prompts = [Prompt(text, tuple(LETTERS.index(letter) for letter in text)) for text in TEXTS * 4]
    generator = torch.Generator().manual_seed(0)
    given = {} if mask is None else {"logit_mask": mask}
    return sample(policy, prompts, SamplingConfig(**{"max_new_tokens": 12, **options}), generator=generator, **given)


def test_at_beta_zero_q_heads_change_nothing(q_policy: ModelPolicy) -> None:
    plain = build_causal_lm(make_gpt2(), CausalLMConfig(), tokenizer=make_tokenizer())
    for options in ({}, {"temperature": 0.7, "top_k": 9}, {"temperature": 0.0}):
        one, other = continued(plain, **options), continued(q_policy, **options, beta=0.0)
        assert torch.equal(one.tokens, other.tokens)
        assert torch.equal(one.ended, other.ended)
        for name, column in one.columns.items():
            assert torch.equal(column, other[name])
        assert set(other.columns) == {*one.columns, "values"}


def test_steering_uses_the_lowest_target_minus_the_value(q_policy: ModelPolicy) -> None:
    model, heads = q_policy.module.model, q_policy.module.q_heads
    sync_targets(q_policy, 0.5)
    with torch.no_grad():
        for number, target in enumerate(heads.targets):  # neither the heads alone nor one target alone gives this
            target.fall.bias.add_(torch.randn(32, generator=torch.Generator().manual_seed(number)))
    batch = continued(q_policy, beta=3.0, temperature=0.8, top_k=8)
    for i in range(len(TEXTS)):
        tokens = batch.tokens[i][batch.mask[i]]
        at = batch.action_mask[i].nonzero()[:, 0]
        with torch.no_grad():
            said = model(tokens[None], output_hidden_states=True)
            hidden = said.hidden_states[-1][0].double()
            lowest = torch.stack(
                [
                    (hidden @ t.rise.weight.double().T + t.rise.bias).clamp(min=0) @ t.fall.weight.double().T
                    + t.fall.bias
                    for t in heads.targets
                ]
            ).amin(0)
        steered = (said.logits[0].double().log_softmax(-1) + 3.0 * lowest) / 0.8
        steered = steered.masked_fill(steered < steered.topk(8).values[:, -1:], float("-inf")).log_softmax(-1)
        expected = steered[at - 1, batch.tokens[i, at]]
        torch.testing.assert_close(batch["sampling_logprobs"][i, at].double(), expected, atol=1e-4, rtol=0)
        plain = (said.logits[0].double() / 0.8).log_softmax(-1)[at - 1, batch.tokens[i, at]]
        torch.testing.assert_close(batch["logprobs"][i, at].double(), plain, atol=1e-5, rtol=0)


@pytest.mark.parametrize("option", [{"beta": 1.0}, {"beta": -1.0}, {"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.5}])
def test_sampling_options_count_as_plain_only_if_they_keep_the_policys_distribution(option: dict[str, Any]) -> None:
    assert SamplingConfig().is_plain
    assert SamplingConfig(temperature=0.5).is_plain
    assert not SamplingConfig(**option).is_plain


def test_a_mask_renormalises_the_tokens_allowed_after_the_last_one() -> None:
    from scipy import stats

    policy = Tables(STEERED.logits)  # (1/2, 1/4, 1/4) after every token
    mask = [[YES, NO, YES], [NO, YES, YES], [YES, YES, YES]]
    for last, wanted in enumerate(({0: 2 / 3, 2: 1 / 3}, {1: 1 / 2, 2: 1 / 2}, {0: 1 / 2, 1: 1 / 4, 2: 1 / 4})):
        batch = draw(policy, [last] * 2000, mask)
        drawn = probabilities(batch, "sampling_logprobs")
        assert drawn == {token: pytest.approx(share, abs=2e-5) for token, share in wanted.items()}
        assert probabilities(batch, "logprobs") == {token: (0.5, 0.25, 0.25)[token] for token in wanted}
        counts = np.bincount(batch.tokens[:, 1].numpy(), minlength=3)[list(wanted)]
        assert stats.chisquare(counts, [share * 2000 for share in wanted.values()]).pvalue > 1e-3


def test_at_every_step_a_mask_depends_on_the_previous_token() -> None:
    cycle = [[NO, YES, NO], [NO, NO, YES], [YES, NO, NO]]
    for temperature in (0.0, 1.0):
        batch = draw(Tables(torch.zeros(3, 3)), [0, 2], cycle, max_new_tokens=4, temperature=temperature)
        assert batch.action_tokens == [[1, 2, 0, 1], [0, 1, 2, 0]]
        assert batch["sampling_logprobs"][batch.action_mask].abs().max() == 0


def test_a_mask_applies_together_with_advantages_temperature_and_top_k() -> None:
    mask = [[YES, YES, NO]] * 3
    batch = draw(STEERED, [0] * 2000, mask, beta=BETA, temperature=0.5)
    assert probabilities(batch, "sampling_logprobs") == {0: pytest.approx(0.5), 1: pytest.approx(0.5)}
    batch = draw(STEERED, [0] * 200, mask, beta=1.5 * BETA, top_k=1)  # not token 2, the most likely of all
    assert probabilities(batch, "sampling_logprobs") == {1: 1.0}


def test_a_mask_that_allows_everything_does_not_change_samples(q_policy: ModelPolicy) -> None:
    for options in ({}, {"temperature": 0.7, "top_k": 9, "beta": 2.0}, {"temperature": 0.0}):
        free, masked = continued(q_policy, **options), continued(q_policy, torch.ones(32, 32).bool(), **options)
        assert torch.equal(free.tokens, masked.tokens)
        torch.testing.assert_close(free["logprobs"], masked["logprobs"])


@pytest.mark.parametrize("share", [0, 1_000_000])
def test_a_mask_follows_sequences_that_change_places(
    q_policy: ModelPolicy, monkeypatch: pytest.MonkeyPatch, share: int
) -> None:
    mask = torch.rand(32, 32, generator=torch.Generator().manual_seed(0)) < 0.4
    options = {"max_new_tokens": 30, "eos_token_ids": (1, 5, EOS), "batch_size": 7}
    usual = continued(q_policy, mask, **options)
    monkeypatch.setattr("rlcore_transformers.sampling.sampler.LEAVE_SHARE", share)
    other = continued(q_policy, mask, **options)
    assert len(set(usual.num_actions.tolist())) > 4
    assert usual.action_tokens == other.action_tokens
    before = usual.tokens.roll(1, 1)
    assert mask[before[usual.action_mask], usual.tokens[usual.action_mask]].all()


def test_a_token_after_which_the_mask_allows_nothing_is_an_error_when_it_is_sampled() -> None:
    policy = Tables(torch.zeros(3, 3))
    trap = [[NO, YES, NO], [NO, NO, NO], [YES, NO, NO]]
    assert draw(policy, [0], trap).action_tokens == [[1]]  # a sequence at its length limit needs no allowed next token
    message = (
        r"logit_mask\[1\]: allows no token after token 1 \('b'\), and a sequence has reached it; allow EOS after it"
    )
    for temperature in (0.0, 1.0):
        with pytest.raises(DataError, match=message):
            draw(policy, [2, 0], trap, max_new_tokens=3, temperature=temperature)
    with pytest.raises(DataError, match=message):
        draw(policy, [1], trap)


def test_a_mask_need_not_allow_any_token_after_eos() -> None:
    policy = Tables(torch.zeros(3, 3), eos_token_ids=(1,))
    trap = [[NO, YES, NO], [NO, NO, NO], [NO, NO, YES]]
    batch = draw(policy, [0] + [2] * 9, trap, max_new_tokens=5)  # the first ends at once and waits for the others
    assert batch.action_tokens == [[1]] + [[2] * 5] * 9
    assert batch.ended.tolist() == [True] + [False] * 9


def test_a_mask_that_allows_only_eos_is_refused_before_the_minimum_length() -> None:
    policy = Tables(torch.zeros(3, 3), eos_token_ids=(0,))
    only_end = [[YES, NO, NO]] * 3
    for temperature in (0.0, 1.0):
        with pytest.raises(
            DataError, match=r"allows no token after token 2 \('c'\), EOS not before gen.min_new_tokens = 2"
        ):
            draw(policy, [2], only_end, max_new_tokens=3, min_new_tokens=2, temperature=temperature)


@pytest.mark.parametrize("size", [2, 4])
def test_a_mask_has_a_row_and_a_column_for_each_token_of_the_model(size: int) -> None:
    with pytest.raises(DataError, match=rf"has {size} rows and {size} columns, and the model chooses among 3 tokens"):
        draw(STEERED, [0], torch.ones(size, size).bool())
