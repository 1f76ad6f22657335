"""Options on tokens with a real vLLM on the CPU, compared with the processors of transformers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from test_engine import ROWS, SAMPLING, SEEDS, make_policy, tiny_gpt2
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from rlcore.sampling import sample
from rlcore.settings import SamplingConfig
from rlcore_engines.vllm.config import VLLMConfig
from rlcore_engines.vllm.generation import PATH, Completion, changes_of, check_sampling, read_answer
from rlcore_engines.vllm.vllm_sampler import VLLMSampler
from rlcore_testing.small import EOS, VOCABULARY
from rlcore_transformers.sampling.token_options import TokenOptions

pytestmark = pytest.mark.engine

WARM = SamplingConfig(max_new_tokens=8, temperature=0.7)
BIAS, ALLOWED = {3: -1.5, 7: 2.0, EOS: -100.0}, tuple(range(0, VOCABULARY, 2))
CASES = {
    "min_p": (TokenOptions(min_p=0.2), WARM),
    "repetition_penalty": (TokenOptions(repetition_penalty=1.7), WARM),
    "logit_bias": (TokenOptions(logit_bias=BIAS), WARM),
    "allowed_tokens": (TokenOptions(allowed_tokens=ALLOWED), WARM),
    "min_p and top_k": (TokenOptions(min_p=0.1), SamplingConfig(max_new_tokens=8, temperature=0.7, top_k=4)),
    "all but min_p, top_p": (
        TokenOptions(repetition_penalty=1.3, logit_bias=BIAS, allowed_tokens=ALLOWED),
        SamplingConfig(max_new_tokens=8, temperature=1.3, top_k=6, top_p=0.8),
    ),
    "all but top_p": (
        TokenOptions(min_p=0.1, repetition_penalty=1.3, logit_bias=BIAS, allowed_tokens=ALLOWED), WARM
    ),
    "greedy": (
        TokenOptions(min_p=0.1, repetition_penalty=3.0, logit_bias=BIAS, allowed_tokens=ALLOWED),
        SamplingConfig(max_new_tokens=8, temperature=0.0),
    ),
}  # fmt: skip


def processors_of(options: TokenOptions, sampling: SamplingConfig) -> LogitsProcessorList:
    """Return the processors of transformers, in the order of its `generate`."""
    found: list[Any] = []
    if options.biases:
        found.append(SequenceBiasLogitsProcessor({(int(token),): bias for token, bias in options.biases}))
    if options.allowed_tokens:
        others = [token for token in range(VOCABULARY) if token not in options.allowed_tokens]
        found.append(SuppressTokensLogitsProcessor(others))
    if options.repetition_penalty != 1:
        found.append(RepetitionPenaltyLogitsProcessor(options.repetition_penalty))
    if sampling.temperature:
        found.append(TemperatureLogitsWarper(sampling.temperature))
        found += [TopKLogitsWarper(sampling.top_k)] if sampling.top_k else []
        found += [TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []
        found += [MinPLogitsWarper(options.min_p)] if options.min_p else []
    return LogitsProcessorList(found)


def test_options_on_tokens_are_those_of_transformers(engine: dict[str, Any], tmp_path: Path) -> None:
    """All requests are sent from 16 threads, so that rows of one batch have different options."""
    policy, sampler = make_policy(tiny_gpt2), VLLMSampler(VLLMConfig(weights_dir=str(tmp_path), **engine))
    asked = []
    for name, (options, sampling) in CASES.items():
        check_sampling(sampling, options=options)
        changes = changes_of(options, policy.tokenizer)
        asked += [
            (name, Completion(row.tokens, 8, None if name == "greedy" else seed, sampling, (EOS,), changes=changes))
            for seed in range(8)
            for row in ROWS
        ]
    try:
        sampler(policy, ROWS, SAMPLING, row_seeds=SEEDS)
        (server,) = sampler._fleet.servers
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda each: server._call("POST", PATH, each[1].body()).json(), asked))
    finally:
        sampler.close()
    gaps, left_out = dict.fromkeys(CASES, 0.0), dict.fromkeys(CASES, 0.0)
    for (name, request), answer in zip(asked, answers, strict=True):
        version = answer["choices"][0]["weight_versions"][0]["version"]
        generated, processors = read_answer(answer, request, version, "server"), processors_of(*CASES[name])
        ids = torch.tensor([[*request.prompt, *generated.tokens]])
        with torch.no_grad():
            logits = policy.model(ids).logits[0]
        for place, (token, logprob) in enumerate(
            zip(generated.tokens, generated.logprobs, strict=True), start=len(request.prompt)
        ):
            expected = processors(ids[:, :place], logits[place - 1 : place].clone()).log_softmax(-1)[0]
            if name == "greedy":
                assert token == int(expected.argmax())
            whole = (logits[place - 1] / (request.sampling.temperature or 1)).log_softmax(-1)
            gaps[name] = max(gaps[name], abs(float(expected[token]) - logprob))
            left_out[name] = max(left_out[name], abs(float(whole[token]) - logprob))
    for name, gap in gaps.items():
        print(f"{name}: {gap:.1e} nats, and {left_out[name]:.2f} if the options had no effect")
    assert max(gaps.values()) < 1e-5
    assert min(left_out.values()) > 0.1


def test_the_eos_of_the_servers_model_is_kept_from_the_first_tokens(engine: dict[str, Any], tmp_path: Path) -> None:
    """Also if it is none of `eos_token_ids`, as the manual states; with `sampler: default` it is sampled then."""
    policy, sampler = make_policy(tiny_gpt2), VLLMSampler(VLLMConfig(weights_dir=str(tmp_path), **engine))
    many, early = ROWS * 40, SamplingConfig(max_new_tokens=3, min_new_tokens=3, eos_token_ids=())
    try:
        counts = [
            sum(row.count(EOS) for row in sampler(policy, many, each, row_seeds=range(len(many))).action_tokens)
            for each in (early, SamplingConfig(max_new_tokens=3, eos_token_ids=()))
        ]
    finally:
        sampler.close()
    mine = sum(row.count(EOS) for row in sample(policy, many, early).action_tokens)
    print(f"EOS among {3 * len(many)} tokens: {counts[0]}, without min_new_tokens {counts[1]}; default {mine}")
    assert counts[0] == 0 < min(counts[1], mine)
