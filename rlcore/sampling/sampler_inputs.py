"""Inputs of the sampler: prompts as tokens, token limits, and checks of the options before the first token."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from rlcore.data.prompts import build_prompts
from rlcore.errors import ConfigError, DataError
from rlcore.protocols import Policy
from rlcore.settings import DataConfig, SamplingConfig
from rlcore.types import Prompt


def check_options(policy: Policy, sampling: SamplingConfig, where: str = "gen") -> None:
    """Check the sampling options against each other and against the policy.

    Args:
        policy: the policy to sample from.
        sampling: the options.
        where: the section of the options, for messages.

    Raises:
        ConfigError: two options contradict each other, or the policy lacks the Q-heads that an option needs.
    """
    if sampling.min_new_tokens > sampling.max_new_tokens:
        raise ConfigError(
            f"{where}.min_new_tokens = {sampling.min_new_tokens}: must not exceed max_new_tokens, "
            f"{sampling.max_new_tokens}"
        )
    if sampling.beta and not policy.num_q_heads:
        raise ConfigError(
            f"{where}.beta = {sampling.beta:g}: steers by the advantages of Q-heads, and this policy has none; leave "
            "beta at 0, or choose a trainer that gives its policy Q-heads"
        )


def takes_logit_mask(sampler: Callable[..., Any]) -> bool:
    """Return whether the signature of a sampler accepts `logit_mask`."""
    return _takes(sampler, "logit_mask")


def takes_on_batch(sampler: Callable[..., Any]) -> bool:
    """Return whether the signature of a sampler accepts `on_batch`."""
    return _takes(sampler, "on_batch")


def takes_row_seeds(sampler: Callable[..., Any]) -> bool:
    """Return whether the signature of a sampler accepts `row_seeds`."""
    return _takes(sampler, "row_seeds")


def takes_waiting(policy: Policy) -> bool:
    """Return whether the signature of `policy.decoder` names `waiting`, the number of waiting prompts.

    `**kwargs` does not count: a wrapper might pass the argument to a policy without it.
    """
    return "waiting" in (_parameters(policy.decoder) or {})


def _takes(sampler: Callable[..., Any], argument: str) -> bool:
    parameters = _parameters(sampler)
    if parameters is None:
        return True
    return argument in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """Return the parameters of a function; None if it has no signature, such as a function of a C extension."""
    try:
        return inspect.signature(function).parameters
    except (ValueError, TypeError):
        return None


def check_vocabulary(logit_mask: Tensor, vocabulary: int) -> None:
    """Check that a mask, bool[V, V], has one row and one column for each token of the model.

    Raises:
        DataError: the sizes differ; the message names both.
    """
    height, width = logit_mask.shape
    if (height, width) != (vocabulary, vocabulary):
        raise DataError(
            f"logit_mask: has {height} rows and {width} columns, and the model chooses among {vocabulary} tokens "
            "(its vocabulary may be larger than the tokenizer's): give one row and one column for each of these"
        )


def as_prompts(policy: Policy, prompts: Sequence[Prompt] | Sequence[str]) -> list[Prompt]:
    """Return prompts unchanged, and tokenise strings with the policy's tokenizer.

    Raises:
        DataError: `prompts` is a single string, or a text has no tokens.
    """
    if isinstance(prompts, str):
        raise DataError(f"prompts = {prompts!r:.80}: give a list, [{prompts!r:.80}] for one prompt")
    ready = [prompt for prompt in prompts if isinstance(prompt, Prompt)]
    if len(ready) == len(prompts):
        return ready
    return build_prompts(iter(prompts), policy.tokenizer, DataConfig(), max_length=0)


def token_limits(prompts: Sequence[Prompt], max_new_tokens: int, max_length: int) -> list[int]:
    """Return the maximum number of new tokens of each prompt.

    Raises:
        DataError: a prompt has no tokens, or fills the context of the policy.
    """
    for i, prompt in enumerate(prompts):
        if not prompt.tokens:
            raise DataError(
                f"prompts[{i}] = {prompt.text!r}: has no tokens, so there is nothing to continue; give at least one "
                "(such as BOS)"
            )
        if max_length and len(prompt.tokens) >= max_length:
            raise DataError(
                f"prompts[{i}] has {len(prompt.tokens)} tokens, which leaves no room for a new one in the policy's "
                f"context of {max_length}: shorten it, or set data.max_prompt_tokens"
            )
    if not max_length:
        return [max_new_tokens] * len(prompts)
    return [min(max_new_tokens, max_length - len(prompt.tokens)) for prompt in prompts]


def decoding_order(prompts: Sequence[Prompt], size: int) -> deque[int]:
    """Return the indices of the prompts in decoding order; `size` prompts are decoded at once, 0 means all.

    Prompts of similar length are decoded together, the longest first, so that the first allocation fits all others.
    """
    indices = range(len(prompts))
    if not size or size >= len(prompts):
        return deque(indices)
    return deque(sorted(indices, key=lambda index: -len(prompts[index].tokens)))
