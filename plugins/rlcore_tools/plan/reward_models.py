"""The memory of reward models that score the responses of a run, built on fake tensors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import attrs
import torch
from transformers import PreTrainedModel

from rlcore.config import ConfigOnly, evolve
from rlcore.protocols import RewardTraits
from rlcore.rewards.chosen_rewards import ChosenReward
from rlcore.types import Trajectories
from rlcore_tools.plan.fake_tensors import LiveBytes
from rlcore_tools.plan.workload import stand_in
from rlcore_transformers.models.freezing import vocabulary_size


@attrs.frozen(eq=False)
class PlannedReward:
    """A reward model of a run; its weights are fake tensors.

    Attributes:
        name: the reward's name in metrics.
        scorer: the model, with `module`, `max_length` and `score`.
        batch_size: sequences of one forward pass.
        max_length: most tokens of a sequence; 0 without a bound.
    """

    name: str
    scorer: Any
    batch_size: int
    max_length: int


def build_reward_models(rewards: tuple[ChosenReward, ...], device: torch.device) -> tuple[PlannedReward, ...]:
    """Build the reward models that run on `device`; called inside `fake_tensors`.

    A registered reward is one if its class has the attribute `scorer`, and its options a `path`.

    Args:
        rewards: the rewards of the run.
        device: the device whose memory is estimated.

    Raises:
        ModelError: a model's configuration cannot be read, or is no reward model's.
    """
    return tuple(_build(rewards, device))


def _build(rewards: tuple[ChosenReward, ...], device: torch.device) -> Iterator[PlannedReward]:
    for reward in rewards:
        if reward.choice is None or RewardTraits(build := reward.choice.component.target()).scorer is None:
            continue
        options: Any = reward.choice.options
        if options.device not in ("auto", device.type, str(device)):
            continue
        model = options.path
        described = model.config if isinstance(model, PreTrainedModel) else ConfigOnly(os.fspath(model))
        # A model that is not in memory yet is loaded for the run's device.
        scorer = build(evolve(options, path=described, tokenizer=stand_in(2))).scorer
        limits = [limit for limit in (options.max_length, scorer.max_length) if limit]
        yield PlannedReward(reward.name, scorer, options.batch_size, min(limits, default=0))


def scoring_pass(reward: PlannedReward, live: LiveBytes, *, num: int, length: int) -> tuple[int, int]:
    """Score a batch of different sequences.

    Args:
        reward: the reward model.
        live: counts the bytes of its tensors.
        num: number of sequences that a process scores in a round.
        length: tokens of each, which the model's limit may lower.

    Returns:
        The bytes of the pass, and the bytes that malloc keeps of freed tensors.
    """
    size, longest = min(num, reward.batch_size), min(length, reward.max_length or length)
    base = max(vocabulary_size(reward.scorer.module.model), 2)
    rows = torch.randint(base, (size, longest), generator=torch.Generator().manual_seed(0)).tolist()
    before = live.restart()
    with torch.no_grad():
        reward.scorer.score(Trajectories.stack(rows, [[False] * longest for _ in rows]))
    return live.peak - before, live.holes
