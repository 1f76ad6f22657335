"""Registration of the reward `human` and the command `judgements`, and their part of a report; light."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlcore import hookimpl
from rlcore.hookspecs import Register

if TYPE_CHECKING:
    from rlcore.protocols import RunView


@hookimpl
def register_rewards(register: Register) -> None:
    """Register the reward `human`."""
    register(
        "human",
        "rlcore_human.human_reward:HumanReward",
        config="rlcore_human.config:HumanConfig",
        summary="people score or rank completions on a local web page",
    )


@hookimpl
def register_commands(register: Register) -> None:
    """Register the command `judgements`."""
    register(
        "judgements",
        "rlcore_human.judgements_command:command",
        summary="judgements of people: as preferences, or to and from Argilla",
    )


@hookimpl
def on_evaluate(run: RunView) -> None:
    """Write for the report how far people agree so far."""
    _report_agreement(run)


@hookimpl
def on_run_end(run: RunView) -> None:
    """Write for the report how far people agree."""
    _report_agreement(run)


def _report_agreement(run: RunView) -> None:
    if run.ranks.is_main and (run.dir / "judgements.jsonl").exists():
        from rlcore_human.agreement import write_agreement

        write_agreement(run.dir)
