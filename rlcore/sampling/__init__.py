"""Sampling with the registered sampler, the seeds of rows, and what a run checks of any sampler.

Every row has a seed of its own, from which its random numbers follow: a hash of (seed, position), so that they depend
neither on other rows nor on how many are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlcore.data.user_code import parameters_of
from rlcore.errors import ConfigError, DataError
from rlcore.plugins.registry import registries
from rlcore.protocols import Policy, PolicyTraits
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories

__all__ = ["sample"]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
"""Distance of neighbouring states of SplitMix64: the golden ratio times 2^64, made odd."""


def sample(
    policy: Policy,
    prompts: Sequence[Prompt] | Sequence[str],
    sampling: SamplingConfig,
    *,
    generator: torch.Generator | None = None,
    row_seeds: Sequence[int] | None = None,
    logit_mask: Tensor | None = None,
    on_batch: Callable[[list[int], Trajectories], None] | None = None,
    options: object = None,
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
    if sampling.beta and not PolicyTraits(policy).steers:
        raise ConfigError(
            f"{where}.beta = {sampling.beta:g}: steers by the advantages of Q-heads, and this policy has none; leave "
            "beta at 0, or choose a trainer that gives its policy Q-heads"
        )


def takes(component: Callable[..., object], argument: str) -> bool:
    """Return whether the signature of a component accepts an optional argument, such as `row_seeds` of a sampler."""
    parameters = parameters_of(component)
    return parameters is None or argument in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def takes_waiting(policy: Policy) -> bool:
    """Return whether the signature of `policy.decoder` names `waiting`, the number of waiting prompts.

    `**kwargs` does not count: a wrapper might pass the argument to a policy without it.
    """
    return "waiting" in (parameters_of(policy.decoder) or {})


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


def draw_seeds(count: int, generator: torch.Generator | None) -> list[int]:
    """Draw `count` seeds, in 0..2^63-1; from torch's default generator if `generator` is None."""
    device = torch.device("cpu") if generator is None else generator.device
    seeds: list[int] = torch.randint(2**63 - 1, (count,), generator=generator, device=device).tolist()
    return seeds


def derive_seeds(seed: int, rows: Sequence[int]) -> list[int]:
    """Return the seeds, in 0..2^63-1, of the rows with these indices in a round whose seed is `seed`."""
    start = _mix(np.array([seed], dtype=np.uint64))
    seeds: list[int] = (hash_positions(start, np.array(rows, dtype=np.uint64)) >> np.uint64(1)).tolist()
    return seeds


def hash_positions(seed: NDArray[np.uint64], position: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return output number `position` of SplitMix64 from each seed (Steele, Lea and Flood 2014)."""
    return _mix(seed + (position + np.uint64(1)) * _GAMMA)


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the output of SplitMix64 at each state, computed in place; products wrap at 2^64."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state ^= state >> np.uint64(shift)
        state *= np.uint64(factor)
    state ^= state >> np.uint64(31)
    return state
