"""Registration of the rewards; light, since every command imports it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence

from rlcore import hookimpl
from rlcore.hookspecs import Register, RegisterServices, Services

REWARDS = {
    "math_accuracy": ("math_accuracy:MathAccuracy", "1 if the answer equals that of a column as mathematics"),
    "exact_match": ("text_rewards:ExactMatch", "1 if the output equals the text of a column"),
    "regex": ("text_rewards:Regex", "1 if a pattern is found in the output, or the number of times it is found"),
    "json_schema": ("json_schema:JsonSchema", "1 if the output is JSON that fits a schema"),
    "length": ("text_rewards:Length", "a limit or target for the number of tokens, characters or words"),
    "repetition": ("text_rewards:Repetition", "minus the share of n-grams that repeat an earlier one"),
    "language": ("language:Language", "1 if the output is written in a language"),
    "code_tests": ("code_tests:CodeTests", "share of tests that the code in the output passes"),
    "judge": ("judge:Judge", "the score that a model behind an OpenAI-compatible server gives by a rubric"),
}
"""Name → class, and summary."""


@hookimpl
def register_rewards(register: Register) -> None:
    """Register the rewards; the class of options of `math_accuracy:MathAccuracy` is `MathAccuracyConfig`."""
    for name, (target, summary) in REWARDS.items():
        _, _, cls = target.partition(":")
        register(name, f"rlcore_rewards.{target}", config=f"rlcore_rewards.config:{cls}Config", summary=summary)


@hookimpl
def register_services(register: RegisterServices) -> None:
    """Refuse prompts without the column that one of these rewards compares with, in its own words."""
    register(Services(reward_arguments=_refuse_missing), order="first")


def _refuse_missing(parameters: Sequence[inspect.Parameter], arguments: Mapping[str, object]) -> None:
    columns = sys.modules.get("rlcore_rewards.parts")  # which every reward with a column imports
    if columns is not None:
        columns.refuse_missing(parameters, arguments)
