"""Plans of runs with an environment: prompts have its first messages, and rows need no text of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from planning_making import folders, ppo

from rlcore.config import merge
from rlcore.errors import DataError
from rlcore.protocols import Step
from rlcore_tools.plan.estimate import estimate
from rlcore_tools.plan.workload import ONE_TURN

__all__ = ["folders"]  # a fixture


class Words:
    """Its first message has as many words as the row says."""

    def reset(self, row: Any, *, seed: int) -> str:
        return " ".join(["w1"] * row["words"])

    def step(self, turn: Any) -> Step:
        return Step(done=True)


class Own(Words):
    @staticmethod
    def rows(split: str) -> list[dict[str, int]]:
        return [{"words": 9 if split == "train" else 4}]


def planned(folder: Path, **data: Any) -> Any:
    return estimate(merge(ppo(folder), {"data": {"prompts": None, "reward_fn": None, **data}}), "test").subject


@pytest.mark.slow
def test_prompts_of_an_environment_are_planned_with_its_first_messages(folders: dict[str, Path]) -> None:
    subject = planned(folders["gpt"], environment=Words, prompts=[{"words": 5}, {"words": 11}])
    assert (subject.lengths.prompt, subject.lengths.num_prompts) == (11, 2)
    assert ONE_TURN in subject.notes


@pytest.mark.slow
def test_an_environment_with_rows_of_its_own_is_planned(folders: dict[str, Path]) -> None:
    subject = planned(folders["gpt"], environment=Own)
    assert (subject.lengths.prompt, subject.lengths.eval_prompt) == (9, 4)


def test_a_plan_names_the_row_at_which_an_environment_fails(folders: dict[str, Path]) -> None:
    with pytest.raises(DataError, match=r"prompts\[0\]: environment 'Words': reset raised KeyError: 'words'"):
        planned(folders["gpt"], environment=Words, prompts=[{"letters": 5}])
