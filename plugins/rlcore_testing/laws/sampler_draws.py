"""Laws on the distribution of sampled tokens and on random numbers; part of `rlcore_testing.laws.samplers`."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlcore.errors import ConfigError
from rlcore.sampling import derive_seeds
from rlcore_testing.law import LawBroken, Subject, law, require
from rlcore_testing.rig.isolate import undisturbed
from rlcore_testing.rig.reference_transformers import continue_greedily, next_logprobs
from rlcore_testing.rig.sampler_calls import (
    ENDING,
    TEXTS,
    check_frequencies,
    draw,
    draws_from_policy,
    make_policy,
    make_prompts,
    softmax,
    takes_logit_mask,
    takes_row_seeds,
)  # fmt: skip
from rlcore_testing.small import EOS, VOCABULARY, make_gpt2, make_llama

SAMPLERS = "samplers"
BETA = 4.0
"""Weight of the advantages in the law on `beta`."""
ALLOWED_SHARE = 0.3
"""Share of tokens that `logit_mask` allows after a token."""


@law(SAMPLERS, when=draws_from_policy)
def greedy_equals_transformers(subject: Subject) -> None:
    """At temperature 0 every continuation equals the greedy output of `generate` of transformers, token for token.

    `generate` receives each prompt alone; the sampler receives a batch of prompts of different lengths, which end at
    different steps. The law is checked with GPT-2 and Llama.
    """
    prompts = make_prompts(TEXTS)
    for make in (make_gpt2, make_llama):
        plain = make()
        free = [continue_greedily(plain, prompt.tokens, eos=(), limit=10) for prompt in prompts]
        for eos in ((), (free[0][4], free[2][1])):
            batch = draw(subject, make_policy(make), prompts, max_new_tokens=10, temperature=0.0, eos_token_ids=eos)
            for prompt, seen in zip(prompts, batch.action_tokens, strict=True):
                expected = continue_greedily(plain, prompt.tokens, eos=eos, limit=10)
                require(
                    seen == expected,
                    f"{type(plain).__name__}, prompt {list(prompt.tokens)}, EOS {list(eos)}: transformers continues it "
                    f"greedily with {expected}, the sampler with {seen}; at temperature 0 take the argmax, and "
                    "count positions of real tokens only",
                )


@law(SAMPLERS, when=draws_from_policy)
def frequencies_match_the_policy(subject: Subject) -> None:
    """Frequencies of sampled tokens, and of pairs, match the policy's probabilities (chi-square test, p > 1e-6)."""

    def pairs(model: PreTrainedModel, prompt: Sequence[int]) -> Tensor:
        first = next_logprobs(model, prompt)[-1].exp()
        after = torch.stack([next_logprobs(model, [*prompt, token])[-1].exp() for token in range(len(first))])
        after[EOS] = torch.eye(len(first), dtype=after.dtype)[EOS]  # a first EOS counts as the pair (EOS, EOS)
        return (first[:, None] * after).flatten()

    check_frequencies(subject, softmax)
    check_frequencies(subject, pairs, max_new_tokens=2)


@law(SAMPLERS, when=draws_from_policy)
def temperature_divides_the_logits(subject: Subject) -> None:
    """At temperatures 0.6 and 1.7, frequencies match the softmax of the logits divided by the temperature."""
    for temperature in (0.6, 1.7):
        check_frequencies(subject, functools.partial(softmax, temperature=temperature), temperature=temperature)


@law(SAMPLERS, when=draws_from_policy)
def top_k_samples_the_likeliest(subject: Subject) -> None:
    """With top_k = 5, only the five likeliest tokens are sampled, in proportion to their probabilities."""

    def among(model: PreTrainedModel, prompt: Sequence[int]) -> Tensor:
        probabilities = softmax(model, prompt)
        return probabilities * (probabilities >= probabilities.sort(descending=True).values[4])

    check_frequencies(subject, among, top_k=5)


@law(SAMPLERS, when=draws_from_policy)
def top_p_samples_the_likeliest(subject: Subject) -> None:
    """With top_p, only the smallest set of likeliest tokens whose probabilities sum to at least top_p is sampled."""
    prompt = make_prompts(("cat",))[0]
    likeliest = softmax(make_gpt2(), prompt.tokens).sort(descending=True).values
    reached = likeliest.cumsum(0)
    top_p = float(reached[3] + reached[4]) / 2  # between two cumulative sums, so that rounding does not matter

    def among(model: PreTrainedModel, tokens: Sequence[int]) -> Tensor:
        probabilities = softmax(model, tokens)
        return probabilities * (probabilities >= likeliest[4])

    check_frequencies(subject, among, texts=("cat",), top_p=top_p)


@law(SAMPLERS)
def only_the_generator_matters(subject: Subject) -> None:
    """The same state of `generator` gives the same tokens, independent of the global random state.

    Sampling changes neither this state nor torch's default dtype or the root logger, and writes no file into the
    working folder.
    """
    outputs = []
    for seed in range(2):
        torch.manual_seed(seed)
        policy = make_policy()
        torch.manual_seed(seed)
        with undisturbed("sampling with a generator"):
            outputs.append(draw(subject, policy, make_prompts(TEXTS)).action_tokens)
    require(
        outputs[0] == outputs[1],
        f"two calls with generators of the same seed should sample the same; they sampled {outputs[0]} and "
        f"{outputs[1]}; take every random number from `generator`",
    )


@law(SAMPLERS, when=draws_from_policy)
def the_generator_advances(subject: Subject) -> None:
    """Two calls with the same generator object sample different tokens, so that rollouts differ between rounds."""
    policy, generator = make_policy(), torch.Generator().manual_seed(0)
    outputs = [draw(subject, policy, make_prompts(TEXTS), generator=generator).action_tokens for _ in range(2)]
    require(
        outputs[0] != outputs[1],
        f"a second call with the same generator should sample other tokens; it sampled {outputs[1]} again; use "
        "`generator` itself instead of reseeding from it",
    )


@law(SAMPLERS)
def a_generator_may_be_left_out(subject: Subject) -> None:
    """With `generator=None` the sampler uses torch's global generator."""
    batch = draw(subject, make_policy(), make_prompts(TEXTS), generator=None)
    require(len(batch) == len(TEXTS), f"{len(TEXTS)} prompts should give as many sequences; there are {len(batch)}")


@law(SAMPLERS, when=takes_row_seeds)
def a_row_depends_on_its_own_seed(subject: Subject) -> None:
    """With `row_seeds`, the tokens of a row follow from its prompt and its seed alone, and another seed gives others.

    The other rows, their order, `batch_size` and `generator` change nothing. Unless `draws_from_policy` is False,
    frequencies match the policy's probabilities.
    """
    policy, prompts, seeds = make_policy(), make_prompts(TEXTS), derive_seeds(0, range(len(TEXTS)))
    whole = draw(subject, policy, prompts, row_seeds=seeds, eos_token_ids=ENDING).action_tokens
    rows = (5, 2, 7, 0)
    for generator, size in ((1, 0), (2, 3)):
        some = draw(
            subject, policy, [prompts[row] for row in rows], generator=generator, batch_size=size,
            row_seeds=[seeds[row] for row in rows], eos_token_ids=ENDING,
        ).action_tokens  # fmt: skip
        require(
            some == [whole[row] for row in rows],
            f"rows {list(rows)} with their own seeds, among other rows and with batch_size = {size}, should be sampled "
            f"as before, {[whole[row] for row in rows]}; they are {some}; take the random numbers of row i from "
            "row_seeds[i] alone",
        )
    seeds = derive_seeds(1, range(len(TEXTS)))
    other = draw(subject, policy, prompts, row_seeds=seeds, eos_token_ids=ENDING).action_tokens
    require(
        not draws_from_policy(subject) or other != whole,
        f"other seeds should sample other tokens; they sampled {other} again; use row_seeds",
    )
    if draws_from_policy(subject):
        check_frequencies(subject, softmax, seeds_of=lambda number: derive_seeds(2, range(number)))


@law(SAMPLERS, when=draws_from_policy)
def beta_adds_advantages_to_the_logits(subject: Subject) -> None:
    """With `beta`, frequencies match softmax(log pi + beta A), where A are the decoder's advantages.

    A sampler that does not support `beta` raises a ConfigError instead of ignoring it.
    """
    policy = make_policy(steers=True)

    def steered(model: PreTrainedModel, prompt: Sequence[int]) -> Tensor:
        advantages = policy.decoder([prompt], max_new_tokens=1, advantages=True).start().advantages
        if advantages is None:
            raise LawBroken("the policy steers, but returns no advantages after sampling; do not change it")
        return (next_logprobs(model, prompt)[-1] + BETA * advantages[0].double()).softmax(-1)

    try:
        draw(subject, policy, make_prompts(TEXTS), beta=BETA)
    except ConfigError:
        return
    check_frequencies(subject, steered, policy=policy, beta=BETA)


@law(SAMPLERS, when=takes_logit_mask)
def only_allowed_tokens_are_sampled(subject: Subject) -> None:
    """With a `logit_mask`, only token pairs that it allows are sampled, also in greedy decoding.

    Unless `draws_from_policy` is False, frequencies match the policy's probabilities renormalised over allowed tokens.
    """
    generator = torch.Generator().manual_seed(5)
    mask = torch.rand(VOCABULARY, VOCABULARY, generator=generator) < ALLOWED_SHARE
    mask[:, EOS] = True
    prompts = make_prompts(TEXTS * 4)
    for temperature in (1.0, 0.0):
        batch = draw(subject, make_policy(), prompts, logit_mask=mask, temperature=temperature)
        for prompt, actions in zip(prompts, batch.action_tokens, strict=True):
            before = [prompt.tokens[-1], *actions]
            wrong = [(i, j) for i, j in zip(before, actions, strict=False) if not mask[i, j]]
            require(
                not wrong,
                f"at temperature {temperature:g} token {wrong[0][1] if wrong else ''} was sampled after token "
                f"{wrong[0][0] if wrong else ''} where logit_mask is False; sample j after i only if mask[i, j] is "
                "True, where the first i is the last token of the prompt",
            )
    if draws_from_policy(subject):
        check_frequencies(
            subject,
            lambda model, prompt: softmax(model, prompt) * mask[prompt[-1]],
            logit_mask=mask,
        )


@law(SAMPLERS, when=draws_from_policy)
def batches_change_nothing(subject: Subject) -> None:
    """`batch_size`, the number of prompts that are continued at once, does not change greedy continuations."""
    policy, prompts = make_policy(), make_prompts(TEXTS)
    whole, split = (
        draw(subject, policy, prompts, temperature=0.0, batch_size=size, eos_token_ids=ENDING).action_tokens
        for size in (0, 3)
    )
    require(
        whole == split,
        f"with batch_size = 3 the greedy continuations should be those of one batch, {whole}; they are {split}; "
        "restore the order of the prompts",
    )
