"""Optimizer steps with a strategy of sharding, in processes of their own."""

from __future__ import annotations

from typing import Any

import torch

from rlcore.errors import ConfigError
from rlcore.optim.updater import Updater
from rlcore.plugins.registry import registries
from rlcore.ranks import Ranks
from rlcore.settings import OptimizerConfig, RunConfig
from rlcore_testing.rig.compare_runs import make_batch
from rlcore_testing.rig.gradient_noise import GradientNoise
from rlcore_testing.small import make_llama, make_tokenizer
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig

STEPS, ROWS = 3, 4


def make_steps(name: str, *, noise: int = 0) -> dict[str, Any]:
    """Make optimizer steps on rows that the processes share, and return the trained weights.

    Args:
        name: the full name of the strategy.
        noise: seed of noise in the gradients (`rlcore_testing.rig.gradient_noise`); 0 for none.

    Returns:
        `weights`, or in `refused` the message of the error with which the strategy refuses.
    """
    torch.manual_seed(0)
    component, ranks = registries().shardings.get(name), Ranks()
    policy = build_causal_lm(make_llama(), CausalLMConfig(), tokenizer=make_tokenizer())
    config = OptimizerConfig(lr=1e-2, eps=1e-2, max_grad_norm=0.0)  # so that the scale of gradients counts
    try:
        sharding = component.target()(RunConfig(shard=component.qualified), ranks)
        updater = Updater(policy, config, ranks, total_updates=STEPS, sharding=sharding)
    except ConfigError as error:
        return {"refused": str(error), "weights": []}
    if noise:
        added = GradientNoise(noise)
        added.watch(policy.module)
        updater.optimizer.register_step_pre_hook(added.add)
    for step in range(STEPS):
        whole = make_batch(step, height=ROWS)
        rows = torch.arange(ROWS)[ranks.rank :: ranks.world]
        part, total = whole.rows(rows), whole.action_mask.sum()
        with updater.exchanging(last=True):
            updater.backward(-(policy.score(part).logprobs * part.action_mask).sum() / total)
        updater.step()
    policy.gather()
    return {"refused": "", "weights": torch.cat([weight.flatten() for _, weight in policy.weights()]).tolist()}
