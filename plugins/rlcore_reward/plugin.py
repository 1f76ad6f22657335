"""Registration of the trainer and the reward; light, since every command imports it."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_trainers(register: Register) -> None:
    """Register the trainer `reward`."""
    register(
        "reward",
        "rlcore_reward.trainer:RewardTrainer",
        config="rlcore_reward.config:RewardConfig",
        summary="Reward models from pairs of answers (Bradley-Terry), with margins, centring and ties",
    )


@hookimpl
def register_rewards(register: Register) -> None:
    """Register the reward `reward_model`."""
    register(
        "reward_model",
        "rlcore_reward.reward_model:RewardModel",
        config="rlcore_reward.config:RewardModelConfig",
        summary="the score of a reward model: a folder, a hub id or a model in memory",
    )
