"""Sampling with the sampler `default`, and checks before the first token: of its arguments, and of the options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlcore.errors import ConfigError, DataError
from rlcore.plugins.registry import registries
from rlcore.protocols import Policy
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories


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
    steers = getattr(policy, "steers", None)
    if steers is None:  # a policy of rlcore 0.1
        steers = getattr(policy, "num_q_heads", 0) > 0
    if sampling.beta and not steers:
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


def sample(
    policy: Policy,
    prompts: Sequence[Prompt] | Sequence[str],
    sampling: SamplingConfig,
    *,
    generator: torch.Generator | None = None,
    row_seeds: Sequence[int] | None = None,
    logit_mask: Tensor | None = None,
    on_batch: Callable[[list[int], Trajectories], None] | None = None,
    options: Any = None,
) -> Trajectories:
    """Continue each prompt once, with the registered sampler `default` (`rlcore.protocols.Sampler`).

    Args:
        policy: any policy; sampled without gradients.
        prompts: B tokenised prompts, or strings, which are tokenised as they are.
        sampling: temperature, limits and stop sequences.
        generator: source of random numbers where `row_seeds` is not given.
        row_seeds: a seed for each prompt, which makes its continuation independent of the batch.
        logit_mask: bool[V, V], True where the token of the column may follow the token of the row.
        on_batch: called with finished rows while sampling continues.
        options: an object of the sampler's options; its defaults if omitted.

    Raises:
        UnknownComponent: no installed package registers the sampler.
    """
    component = registries().samplers.get("default")
    options_class: Any = component.config_class()
    target: Any = component.target()
    sampler = target if options_class is None else target(options_class() if options is None else options)
    optional = {"row_seeds": row_seeds, "logit_mask": logit_mask, "on_batch": on_batch}
    given = {name: value for name, value in optional.items() if value is not None}
    result: Trajectories = sampler(policy, prompts, sampling, generator=generator, **given)
    return result
