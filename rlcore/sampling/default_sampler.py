"""Sampling outside a run, with the sampler that is called `default`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rlcore.plugins.registry import registries
from rlcore.protocols import Policy
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories


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
