"""Checks before the first token: which arguments a sampler takes, and whether the options fit the policy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from rlcore.errors import ConfigError, DataError
from rlcore.protocols import Policy
from rlcore.settings import SamplingConfig


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
