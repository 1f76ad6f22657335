"""Laws of what a sampler draws, and from where it has its random numbers; a part of `rlcore.testing.laws.samplers`."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlcore.errors import ConfigError
from rlcore.testing.law import LawBroken, Subject, law, require
from rlcore.testing.rig.reference_transformers import continue_greedily, next_logprobs
from rlcore.testing.rig.sampler_calls import (
    ENDING,
    TEXTS,
    check_frequencies,
    draw,
    draws_from_policy,
    make_policy,
    make_prompts,
    softmax,
    takes_logit_mask,
)  # fmt: skip
from rlcore.testing.small import EOS, VOCABULARY, make_gpt2, make_llama

SAMPLERS = "samplers"
BETA = 4.0
"""Weight of the advantages where one is tried."""
ALLOWED_SHARE = 0.3
"""Share of tokens that may follow a token, where not all may."""


@law(SAMPLERS, when=draws_from_policy)
def greedy_equals_transformers(subject: Subject) -> None:
    """At temperature 0 every continuation is token for token what `generate` of transformers gives.

    `generate` is given each prompt alone; the sampler all of them, of different lengths and ended by EOS at different
    times. Two families of models.
    """
    prompts = make_prompts(TEXTS)
    for make in (make_gpt2, make_llama):
        plain = make()
        free = [continue_greedily(plain, prompt.tokens, eos=(), limit=10) for prompt in prompts]
        for eos in ((), (free[0][4], free[2][1])):
            batch = draw(subject, make_policy(make), prompts, max_new_tokens=10, temperature=0.0, eos_token_ids=eos)
            for prompt, seen in zip(prompts, batch.action_tokens, strict=True):
                wanted = continue_greedily(plain, prompt.tokens, eos=eos, limit=10)
                require(
                    seen == wanted,
                    f"{type(plain).__name__}, prompt {list(prompt.tokens)}, EOS {list(eos)}: transformers continues it "
                    f"greedily with {wanted}, the sampler with {seen}; at temperature 0 take the likeliest token, and "
                    "count positions of real tokens only",
                )


@law(SAMPLERS, when=draws_from_policy)
def frequencies_are_the_policys(subject: Subject) -> None:
    """Tokens, and pairs of them, are drawn as often as the policy's probabilities say (chi-square, p > 1e-6)."""

    def pairs(model: PreTrainedModel, prompt: Sequence[int]) -> Tensor:
        first = next_logprobs(model, prompt)[-1].exp()
        after = torch.stack([next_logprobs(model, [*prompt, token])[-1].exp() for token in range(len(first))])
        after[EOS] = torch.eye(len(first), dtype=after.dtype)[EOS]  # a pair that EOS ends counts as two of it
        return (first[:, None] * after).flatten()

    check_frequencies(subject, softmax)
    check_frequencies(subject, pairs, max_new_tokens=2)


@law(SAMPLERS, when=draws_from_policy)
def temperature_divides_the_logits(subject: Subject) -> None:
    """At temperature 0.6 and 1.7 tokens are drawn as often as the softmax of the divided logits says."""
    for temperature in (0.6, 1.7):
        check_frequencies(subject, functools.partial(softmax, temperature=temperature), temperature=temperature)


@law(SAMPLERS, when=draws_from_policy)
def top_k_draws_among_the_likeliest(subject: Subject) -> None:
    """With top_k = 5 the five likeliest tokens are drawn, in proportion to their probabilities, and no other."""

    def among(model: PreTrainedModel, prompt: Sequence[int]) -> Tensor:
        probabilities = softmax(model, prompt)
        return probabilities * (probabilities >= probabilities.sort(descending=True).values[4])

    check_frequencies(subject, among, top_k=5)


@law(SAMPLERS, when=draws_from_policy)
def top_p_draws_among_the_likeliest(subject: Subject) -> None:
    """With top_p tokens are drawn among the likeliest whose probabilities first reach that sum, and no other."""
    prompt = make_prompts(("cat",))[0]
    likeliest = softmax(make_gpt2(), prompt.tokens).sort(descending=True).values
    reached = likeliest.cumsum(0)
    top_p = float(reached[3] + reached[4]) / 2  # between two sums, so that rounding decides nothing

    def among(model: PreTrainedModel, tokens: Sequence[int]) -> Tensor:
        probabilities = softmax(model, tokens)
        return probabilities * (probabilities >= likeliest[4])

    check_frequencies(subject, among, texts=("cat",), top_p=top_p)


@law(SAMPLERS)
def the_generator_alone_decides(subject: Subject) -> None:
    """The same state of `generator` gives the same tokens, whatever the global random state."""
    drawn = []
    for seed in range(2):
        torch.manual_seed(seed)
        policy = make_policy()
        torch.manual_seed(seed)
        drawn.append(draw(subject, policy, make_prompts(TEXTS)).action_tokens)
    require(
        drawn[0] == drawn[1],
        f"two calls with generators of one seed were to draw the same; they drew {drawn[0]} and {drawn[1]}; take every "
        "random number from `generator`",
    )


@law(SAMPLERS, when=draws_from_policy)
def the_generator_moves_on(subject: Subject) -> None:
    """Two calls with one generator draw different tokens: rollouts are not the same in every round."""
    policy, generator = make_policy(), torch.Generator().manual_seed(0)
    drawn = [draw(subject, policy, make_prompts(TEXTS), generator=generator).action_tokens for _ in range(2)]
    require(
        drawn[0] != drawn[1],
        f"a second call with the same generator was to draw other tokens; it drew {drawn[1]} again; draw from "
        "`generator` itself, not from its seed",
    )


@law(SAMPLERS)
def a_generator_may_be_left_out(subject: Subject) -> None:
    """Without a generator a sampler works too, with torch's global one."""
    batch = draw(subject, make_policy(), make_prompts(TEXTS), generator=None)
    require(len(batch) == len(TEXTS), f"{len(TEXTS)} prompts were to give as many sequences; there are {len(batch)}")


@law(SAMPLERS, when=draws_from_policy)
def beta_steers_what_is_drawn(subject: Subject) -> None:
    """With `beta` tokens are drawn as often as softmax(log pi + beta A) says, A being the advantages of the decoder.

    A sampler that cannot do so raises a ConfigError: what was asked for is not left out in silence.
    """
    policy = make_policy(q_heads=2)

    def steered(model: PreTrainedModel, prompt: Sequence[int]) -> Tensor:
        said = policy.decoder([prompt], max_new_tokens=1, advantages=True).start().advantages
        if said is None:
            raise LawBroken("the policy has Q-heads and gives no advantages any more; leave it as it was")
        return (next_logprobs(model, prompt)[-1] + BETA * said[0].double()).softmax(-1)

    try:
        draw(subject, policy, make_prompts(TEXTS), beta=BETA)
    except ConfigError:
        return
    check_frequencies(subject, steered, policy=policy, beta=BETA)


@law(SAMPLERS, when=takes_logit_mask)
def only_allowed_tokens_are_drawn(subject: Subject) -> None:
    """With a `logit_mask` every token may follow the one before it, also when it is the likeliest that is drawn.

    A sampler that draws from the policy's own distribution draws tokens as often as their probabilities among those
    allowed say.
    """
    generator = torch.Generator().manual_seed(5)
    mask = torch.rand(VOCABULARY, VOCABULARY, generator=generator) < ALLOWED_SHARE
    mask[:, EOS] = True
    prompts = make_prompts(TEXTS * 4)
    for temperature in (1.0, 0.0):
        batch = draw(subject, make_policy(), prompts, logit_mask=mask, temperature=temperature)
        for prompt, chosen in zip(prompts, batch.action_tokens, strict=True):
            before = [prompt.tokens[-1], *chosen]
            wrong = [(i, j) for i, j in zip(before, chosen, strict=False) if not mask[i, j]]
            require(
                not wrong,
                f"at temperature {temperature:g} token {wrong[0][1] if wrong else ''} was drawn after token "
                f"{wrong[0][0] if wrong else ''} where logit_mask is False; draw j after i where mask[i, j] is True "
                "only, the last token of the prompt counting as the first i",
            )
    if draws_from_policy(subject):
        check_frequencies(
            subject,
            lambda model, prompt: softmax(model, prompt) * mask[prompt[-1]],
            logit_mask=mask,
        )


@law(SAMPLERS, when=draws_from_policy)
def batches_change_nothing(subject: Subject) -> None:
    """`batch_size`, how many prompts are continued at once, changes no greedy continuation."""
    policy, prompts = make_policy(), make_prompts(TEXTS)
    whole, split = (
        draw(subject, policy, prompts, temperature=0.0, batch_size=size, eos_token_ids=ENDING).action_tokens
        for size in (0, 3)
    )
    require(
        whole == split,
        f"with batch_size = 3 the greedy continuations were to be those of one batch, {whole}; they are {split}; put "
        "the rows back in the order of the prompts",
    )
