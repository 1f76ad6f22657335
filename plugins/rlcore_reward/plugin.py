"""Registration of trainers, rewards, scorers and the data form of steps; light, since every command imports it."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_trainers(register: Register) -> None:
    """Register the trainers `reward` and `process_reward`."""
    register(
        "reward",
        "rlcore_reward.trainer:RewardTrainer",
        config="rlcore_reward.config:RewardConfig",
        summary="Reward models from pairs of answers (Bradley-Terry), with margins, centring and ties",
    )
    register(
        "process_reward",
        "rlcore_reward.process_trainer:ProcessRewardTrainer",
        config="rlcore_reward.config:ProcessRewardConfig",
        summary="Process reward models from answers in steps, each of which is labelled correct or wrong",
    )


@hookimpl
def register_pipelines(register: Register) -> None:
    """Register the tokenisation of labelled steps."""
    register(
        "stepwise",
        "rlcore_reward.process_trainer:build_stepwise",
        summary="tokenise answers in steps, each labelled correct or not",
    )


@hookimpl
def register_architectures(register: Register) -> None:
    """Register the architectures `sequence_scorer` and `step_scorer`."""
    register(
        "sequence_scorer",
        "rlcore_reward.scorer:build_sequence_scorer",
        config="rlcore_reward.config:SequenceScorerConfig",
        summary="any AutoModelForSequenceClassification with one label, such as a reward model",
        sections={"tokenizer": "rlcore_transformers.models.model_options:TokenizerConfig"},
    )
    register(
        "step_scorer",
        "rlcore_reward.scorer:build_step_scorer",
        config="rlcore_reward.config:SequenceScorerConfig",
        summary="any AutoModelForTokenClassification with two labels, which judges each step of an answer",
    )


@hookimpl
def register_rewards(register: Register) -> None:
    """Register the rewards `reward_model` and `process_reward_model`."""
    register(
        "reward_model",
        "rlcore_reward.reward_model:RewardModel",
        config="rlcore_reward.config:RewardModelConfig",
        summary="the score of a reward model: a folder, a hub id or a model in memory",
    )
    register(
        "process_reward_model",
        "rlcore_reward.reward_model:ProcessRewardModel",
        config="rlcore_reward.config:ProcessRewardModelConfig",
        summary="the probability that the steps of an answer are correct, by a process reward model",
    )
