"""Registration of the reward `human` and the command `judgements`; light."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_rewards(register: Register) -> None:
    """Register the reward `human`."""
    register(
        "human",
        "rlcore_rewards.human.human_reward:HumanReward",
        config="rlcore_rewards.human.config:HumanConfig",
        summary="people score or rank completions on a local web page",
    )


@hookimpl
def register_commands(register: Register) -> None:
    """Register the command `judgements`."""
    register(
        "judgements",
        "rlcore_rewards.human.judgement:command",
        summary="judgements of people: as preferences, or to and from Argilla",
    )
