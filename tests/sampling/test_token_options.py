"""Tests of the sampler's options on tokens, against the logits processors of transformers and values worked by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    T5Config,
    T5ForConditionalGeneration,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from rlcore.config import structure
from rlcore.errors import ConfigError, DataError
from rlcore.protocols import DecodeStep
from rlcore.sampling import sample
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories
from rlcore_testing.small import EOS, LETTERS, make_gpt2, make_tokenizer
from rlcore_transformers.models.causal import build_causal_lm, build_seq2seq_lm
from rlcore_transformers.models.model_options import CausalLMConfig, Seq2SeqLMConfig
from rlcore_transformers.models.policy import ModelPolicy
from rlcore_transformers.sampling.draw import penalise, restrict
from rlcore_transformers.sampling.sampler import DefaultSampler
from rlcore_transformers.sampling.token_options import SamplerConfig

TEXTS = ["a", "hello", "the cat sat", "b", "aaaa", "zz."]
A, B, C = 0, 1, 2
COMBINED: dict[str, Any] = {
    "min_p": 0.2, "repetition_penalty": 1.7, "logit_bias": {"a": -1.5, 4: 2.0}, "forbidden_tokens": (7, "z"),
}  # fmt: skip


def prompts_of(*texts: str) -> list[Prompt]:
    return [Prompt(text=text, tokens=tuple(LETTERS.index(letter) for letter in text)) for text in texts]


def make_policy() -> ModelPolicy:
    torch.manual_seed(0)
    return build_causal_lm(make_gpt2(), CausalLMConfig(), tokenizer=make_tokenizer())


@pytest.fixture
def policy() -> ModelPolicy:
    return make_policy()


def drawn(policy: Any, options: dict[str, Any], texts: Sequence[str] = TEXTS, **gen: Any) -> Trajectories:
    sampling = SamplingConfig(**{"max_new_tokens": 10, **gen})
    seeds = list(range(3, 3 + len(texts)))
    return sample(policy, prompts_of(*texts), sampling, row_seeds=seeds, options=SamplerConfig(**options))


def responses(batch: Trajectories) -> list[list[int]]:
    return [row[mask].tolist() for row, mask in zip(batch.tokens, batch.action_mask, strict=True)]


def processors(options: dict[str, Any], gen: dict[str, Any]) -> LogitsProcessorList:
    """Return the processors of transformers in the order of its `generate`, for options that name tokens by id."""
    found = LogitsProcessorList()
    if bias := options.get("logit_bias"):
        found.append(SequenceBiasLogitsProcessor({(token,): float(value) for token, value in bias.items()}))
    if (penalty := options.get("repetition_penalty", 1.0)) != 1:
        found.append(RepetitionPenaltyLogitsProcessor(penalty))
    if forbidden := options.get("forbidden_tokens"):
        found.append(SuppressTokensLogitsProcessor(list(forbidden)))
    if gen.get("temperature", 1.0) != 1:
        found.append(TemperatureLogitsWarper(gen["temperature"]))
    if gen.get("top_k"):
        found.append(TopKLogitsWarper(gen["top_k"]))
    if gen.get("top_p", 1.0) < 1:
        found.append(TopPLogitsWarper(gen["top_p"]))
    if options.get("min_p"):
        found.append(MinPLogitsWarper(options["min_p"]))
    return found


def by_id(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with the ids of letters in place of texts."""
    bias = {LETTERS.index(key) if isinstance(key, str) else key: v for key, v in options.get("logit_bias", {}).items()}
    forbidden = [LETTERS.index(each) if isinstance(each, str) else each for each in options.get("forbidden_tokens", ())]
    return {**options, "logit_bias": bias, "forbidden_tokens": forbidden}


@pytest.mark.parametrize("min_p", [0.02, 0.1, 0.5, 1.0])
def test_min_p_keeps_the_tokens_that_transformers_keeps(min_p: float) -> None:
    logits = torch.randn(200, 500, generator=torch.Generator().manual_seed(1)) * 3
    expected = MinPLogitsWarper(min_p)(torch.zeros(200, 1, dtype=torch.long), logits)
    assert torch.equal(restrict(logits, min_p=min_p), expected)


def test_min_p_is_a_fraction_of_the_largest_probability() -> None:
    logits = torch.tensor([[0.5, 0.25, 0.15, 0.1]]).log()
    assert restrict(logits, min_p=0.29).isneginf().tolist() == [[False, False, False, True]]
    assert restrict(logits, min_p=0.31).isneginf().tolist() == [[False, False, True, True]]


@pytest.mark.parametrize("penalty", [0.7, 1.1, 2.5])
def test_the_penalty_is_bitwise_that_of_transformers(penalty: float) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(50, 300, generator=generator) * 3
    tokens = torch.randint(300, (50, 40), generator=generator)  # with repetitions
    assert torch.equal(penalise(logits, tokens, penalty), RepetitionPenaltyLogitsProcessor(penalty)(tokens, logits))


def test_the_penalty_divides_positive_logits_and_multiplies_negative_ones_once() -> None:
    found = penalise(torch.tensor([[3.0, -3.0, 3.0, 1.0]]), torch.tensor([[0, 1, 0, 1, 0]]), 2.0)
    assert found.tolist() == [[1.5, -6.0, 3.0, 1.0]]


@pytest.mark.parametrize(
    ("options", "gen"),
    [
        (COMBINED, {}),
        (COMBINED, {"temperature": 0.6, "top_k": 12, "top_p": 0.9}),
        ({"min_p": 0.3}, {"top_p": 0.8, "temperature": 1.5}),
        ({"repetition_penalty": 1.3}, {"top_k": 5}),
        ({"logit_bias": {3: 4.0}}, {}),
    ],
)
def test_sampling_log_probs_are_those_of_the_processors_in_the_order_of_generate(
    policy: ModelPolicy, options: dict[str, Any], gen: dict[str, Any]
) -> None:
    batch = drawn(policy, options, **gen)
    chain, model = processors(by_id(options), gen), policy.module.model
    for i in range(len(batch)):
        begin, end = int((~batch.action_mask[i] & batch.mask[i]).sum()), int(batch.mask[i].sum())
        tokens = batch.tokens[i, :end]
        with torch.no_grad():
            logits = model(tokens[None]).logits[0].float()
        for at in range(begin, end):
            expected = chain(tokens[None, :at], logits[None, at - 1]).log_softmax(1)[0, tokens[at]]
            assert float(batch["sampling_logprobs"][i, at]) == pytest.approx(float(expected), abs=2e-6)


def test_greedy_responses_are_those_of_generate(policy: ModelPolicy) -> None:
    options = {"repetition_penalty": 1.7, "logit_bias": {4: 2.0, 0: -1.5}, "forbidden_tokens": (7, 25), "min_p": 0.9}
    batch = drawn(policy, options, temperature=0.0)
    model = policy.module.model
    for text, response in zip(TEXTS, responses(batch), strict=True):
        tokens = torch.tensor([prompts_of(text)[0].tokens])
        found = model.generate(
            tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=10, eos_token_id=EOS,
            pad_token_id=EOS, repetition_penalty=1.7, sequence_bias={(4,): 2.0, (0,): -1.5}, suppress_tokens=[7, 25],
        )  # fmt: skip
        assert response == found[0, tokens.shape[1] :].tolist()
    assert responses(batch) != responses(drawn(policy, {}, temperature=0.0))


def test_an_encoders_prompt_is_not_penalised_as_in_generate() -> None:
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=32, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=31,
        eos_token_id=EOS, pad_token_id=31,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(20.0)
    policy = build_seq2seq_lm(model, Seq2SeqLMConfig(), tokenizer=make_tokenizer())
    sampling = SamplingConfig(max_new_tokens=8, temperature=0.0)
    prompts = prompts_of("the cat sat")
    found = sample(policy, prompts, sampling, options=SamplerConfig(repetition_penalty=2.5))
    read = policy.module.layout
    opening = torch.tensor([read.opening])
    encoded = torch.tensor([prompts[0].tokens])
    expected = model.generate(
        encoded, attention_mask=torch.ones_like(encoded), decoder_input_ids=opening, do_sample=False,
        max_new_tokens=8, eos_token_id=EOS, pad_token_id=31, repetition_penalty=2.5,
    )  # fmt: skip
    assert responses(found) == [expected[0, opening.shape[1] :].tolist()]
    plain = sample(policy, prompts, sampling)
    assert responses(found) != responses(plain)


@pytest.mark.parametrize("gen", [{}, {"top_k": 9, "temperature": 0.8}, {"temperature": 0.0}])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_rows_depend_on_neither_the_batch_nor_the_rows_that_leave_and_join(
    policy: ModelPolicy, gen: dict[str, Any], size: int
) -> None:
    options = {**COMBINED, "logit_bias": {**COMBINED["logit_bias"], EOS: 2.0}}
    whole = drawn(policy, options, **gen)
    parts = drawn(policy, options, batch_size=size, **gen)
    assert torch.equal(whole.tokens, parts.tokens)
    assert len({len(row) for row in responses(whole)}) > 1, "some rows should end early"
    torch.testing.assert_close(whole["sampling_logprobs"], parts["sampling_logprobs"], atol=1e-5, rtol=0)


def test_the_column_logprobs_is_the_policys_own(policy: ModelPolicy) -> None:
    batch = drawn(policy, COMBINED, temperature=0.7)
    with torch.no_grad():
        expected = policy.score(batch, temperature=0.7).logprobs
    torch.testing.assert_close(batch["logprobs"][batch.action_mask], expected[batch.action_mask], atol=1e-5, rtol=0)
    assert float((batch["sampling_logprobs"] - batch["logprobs"])[batch.action_mask].abs().max()) > 0.1


def test_a_sampler_without_options_samples_as_before(policy: ModelPolicy) -> None:
    plain = drawn(policy, {})
    assert "sampling_logprobs" not in plain.columns
    assert torch.equal(plain.tokens, sample(
        policy, prompts_of(*TEXTS), SamplingConfig(max_new_tokens=10), row_seeds=list(range(3, 9))
    ).tokens)  # fmt: skip


@pytest.mark.parametrize("options", [
    {"min_p": 0.1}, {"repetition_penalty": 1.1}, {"logit_bias": {1: 1.0}}, {"allowed_tokens": (1, 2)},
    {"forbidden_tokens": (1,)},
], ids=str)  # fmt: skip
def test_a_sampler_with_an_option_declares_that_it_draws_from_another_distribution(options: dict[str, Any]) -> None:
    changed, plain = DefaultSampler(SamplerConfig(**options)), DefaultSampler(SamplerConfig(early_leaving=False))
    assert (changed.draws_from_policy, changed.exact_logprobs) == (False, False)
    assert (plain.draws_from_policy, plain.exact_logprobs) == (True, True)
    names = DefaultSampler(SamplerConfig(**options))(make_policy(), [], SamplingConfig()).columns
    assert "sampling_logprobs" in names


def test_only_allowed_tokens_are_sampled_and_forbidden_ones_never(policy: ModelPolicy) -> None:
    found = responses(drawn(policy, {"allowed_tokens": ("a", "b", 2)}, ["hello"] * 50))
    assert {token for row in found for token in row} == {A, B, C}
    assert {len(row) for row in found} == {10}, "EOS is not allowed"
    found = responses(drawn(policy, {"forbidden_tokens": tuple("abcdefghijklmnopqrstuvwxy")}, ["hello"] * 50))
    assert {token for row in found for token in row} <= {LETTERS.index("z"), *range(26, 32)}


class Table:
    """Policy whose logits are a row of a table, indexed by the last token."""

    def __init__(self, logits: Tensor, advantages: Tensor | None = None) -> None:
        self.logits, self.advantages, self.steers = logits, advantages, True
        self.device, self.max_length, self.eos_token_ids = torch.device("cpu"), 0, (2,)
        self.module, self.tokenizer = torch.nn.Linear(1, 1), make_tokenizer()

    def decoder(self, prompts: Any, *, max_new_tokens: int, advantages: bool = False) -> Any:
        del max_new_tokens
        table = self

        class Reader:
            last = torch.tensor([prompt[-1] for prompt in prompts])

            def start(self) -> DecodeStep:
                given = table.advantages[self.last] if advantages and table.advantages is not None else None
                return DecodeStep(table.logits[self.last], None, given)

            def step(self, tokens: Tensor) -> DecodeStep:
                self.last = tokens
                return self.start()

            def keep(self, rows: Tensor) -> None:
                self.last = self.last[rows]

        return Reader()


def test_options_apply_to_the_steered_logits() -> None:
    logits, advantages = torch.tensor([[2.0, -1.0, 0.5]] * 3), torch.tensor([[0.0, 1.5, -0.5]] * 3)
    options = SamplerConfig(logit_bias={2: 0.25}, repetition_penalty=2.0)
    prompts, sampling = [Prompt("", (0, 1))] * 64, SamplingConfig(max_new_tokens=1, beta=2.0)
    batch = sample(Table(logits, advantages), prompts, sampling, row_seeds=list(range(64)), options=options)
    # (2, -1, .5) + 2 (0, 1.5, -.5) + (0, 0, .25) = (2, 2, -.25); tokens 0 and 1 are in the prompt: (1, 1, -.25)
    total = 2 * math.exp(1.0) + math.exp(-0.25)
    expected = [math.log(math.exp(1.0) / total)] * 2 + [math.log(math.exp(-0.25) / total)]
    for i in range(64):
        assert float(batch["sampling_logprobs"][i, 2]) == pytest.approx(expected[int(batch.tokens[i, 2])], abs=1e-6)


def test_a_mask_and_forbidden_tokens_exclude_together() -> None:
    table, mask = Table(torch.zeros(3, 3)), torch.tensor([[True, True, False], [True, True, True], [True] * 3])
    found = sample(
        table, [Prompt("", (0,))] * 40, SamplingConfig(max_new_tokens=1), row_seeds=list(range(40)), logit_mask=mask,
        options=SamplerConfig(forbidden_tokens=(0,)),
    )  # fmt: skip
    assert {tuple(row) for row in responses(found)} == {(1,)}
    with pytest.raises(
        DataError, match=r"logit_mask\[0\]: allows no token .*, and sampler\.allowed_tokens or forbidden"
    ):
        sample(
            table, [Prompt("", (0,))], SamplingConfig(max_new_tokens=1), row_seeds=[1], logit_mask=mask,
            options=SamplerConfig(forbidden_tokens=(0, 1)),
        )  # fmt: skip


@pytest.mark.parametrize(("options", "message"), [
    ({"forbidden_tokens": ("ab",)},
     r"^sampler\.forbidden_tokens: the text 'ab' is 2 tokens, 0 \('a'\), 1 \('b'\), of this tokenizer; give the text"),
    ({"allowed_tokens": ("262",)}, r"sampler\.allowed_tokens: the text '262' .*an id is written as a number, 262$"),
    ({"logit_bias": {"": 1.0}}, r"sampler\.logit_bias: the text '' is no token"),
    ({"logit_bias": {32: 1.0}}, r"sampler\.logit_bias: 32 is no id of the model's vocabulary of 32 tokens, 0 to 31$"),
    ({"forbidden_tokens": (-1,)}, r"sampler\.forbidden_tokens: -1 is no id of the model's vocabulary"),
    ({"logit_bias": {"a": 1.0, 0: 2.0}}, r"sampler\.logit_bias: 'a' and 0 are the same token; name it once"),
    ({"allowed_tokens": ("a", 1), "forbidden_tokens": (1,)},
     r"sampler\.forbidden_tokens: token 1 \('b'\) is in allowed_tokens too"),
    ({"forbidden_tokens": tuple(range(32))}, r"sampler\.forbidden_tokens: all 32 tokens .* are forbidden"),
])  # fmt: skip
def test_tokens_that_cannot_be_meant_are_refused(policy: ModelPolicy, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        drawn(policy, options)
    with pytest.raises(ConfigError, match=message):
        DefaultSampler(SamplerConfig(**options)).check(policy, [SamplingConfig()])


def test_a_minimum_length_needs_an_allowed_token_that_is_not_eos(policy: ModelPolicy) -> None:
    with pytest.raises(ConfigError, match=r"only EOS may be sampled, and gen\.min_new_tokens = 2"):
        drawn(policy, {"allowed_tokens": (EOS,)}, min_new_tokens=2)
    assert responses(drawn(policy, {"allowed_tokens": (EOS,)})) == [[EOS]] * len(TEXTS)


@pytest.mark.parametrize(("values", "message"), [
    ({"min_p": 1.5}, r"sampler\.min_p = 1\.5: must lie in \[0, 1\]"),
    ({"repetition_penalty": 0}, r"sampler\.repetition_penalty = 0: must"),
    ({"logit_bias": {3: 101}}, r"logit_bias\[3\] = 101: must lie in \[-100, 100\]; forbidden_tokens excludes a token"),
    ({"logit_bias": {3: float("-inf")}}, r"must lie in \[-100, 100\]"),
    ({"logit_bias": {1.5: 1}}, r"sampler\.logit_bias"),
    ({"logit_bias": {3: True}}, r"sampler\.logit_bias"),
    ({"allowed_tokens": []}, r"allowed_tokens is an empty list"),
    ({"allowed_tokens": [True]}, r"sampler\.allowed_tokens"),
], ids=str)  # fmt: skip
def test_values_out_of_range_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        structure(SamplerConfig, values, path="sampler")


def test_ids_and_texts_are_told_apart_by_their_type() -> None:
    options = structure(SamplerConfig, {"logit_bias": [[5, 1], ["5", 2]], "allowed_tokens": [5, "5"]})
    assert options.logit_bias == ((5, 1.0), ("5", 2.0))
    assert options.allowed_tokens == (5, "5")
    as_mapping = structure(SamplerConfig, {"logit_bias": {5: 1, " the": 2}})
    assert as_mapping.logit_bias == ((5, 1.0), (" the", 2.0))
    with pytest.raises(ConfigError, match=r"logit_bias = \{'5': 1\}: an id or a text\? .*write \[\[5, 1\]\] for"):
        structure(SamplerConfig, json.loads(json.dumps({"logit_bias": {5: 1}})))
