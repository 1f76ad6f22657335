"""Rewards refuse outputs that are no texts, and columns of another length, with where and what to do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rlcore.errors import RewardError
from rlcore_rewards import build_reward

REWARDS: list[tuple[str, dict[str, Any], str | None]] = [
    ("math_accuracy", {}, "answer"),
    ("exact_match", {}, "answer"),
    ("json_schema", {"column": "schema"}, "schema"),
    ("code_tests", {"isolation": "none"}, "tests"),
    ("regex", {"pattern": "4"}, None),
    ("length", {"cap": 3, "unit": "words"}, None),
    ("repetition", {}, None),
]


@pytest.mark.parametrize(("name", "options", "column"), REWARDS, ids=[each[0] for each in REWARDS])
@pytest.mark.parametrize("output", [None, [{"role": "assistant", "content": "4"}]], ids=["null", "conversation"])
def test_an_output_that_is_no_text_is_refused(
    name: str, options: dict[str, Any], column: str | None, output: Any
) -> None:
    reward = build_reward(name, **options)
    columns = {} if column is None else {column: [None, None]}
    with pytest.raises(RewardError, match=rf"outputs\[1\] = .*: is a {type(output).__name__}, and outputs are texts"):
        reward(outputs=["4", output], **columns)


@pytest.mark.parametrize(("name", "options", "column"), REWARDS[:4], ids=[each[0] for each in REWARDS[:4]])
def test_a_column_of_another_length_is_refused(name: str, options: dict[str, Any], column: str) -> None:
    with pytest.raises(RewardError, match=f"column '{column}' has 1 rows for 2 outputs; give one for each"):
        build_reward(name, **options)(outputs=["4", "5"], **{column: ["4"]})


def test_a_judge_refuses_an_output_that_is_no_text_before_any_request(tmp_path: Path) -> None:
    judge = build_reward("judge", model="m", url="http://127.0.0.1:1/v1", cache=str(tmp_path), rubric="{output}")
    with pytest.raises(RewardError, match=r"outputs\[0\] = None: is a NoneType, and outputs are texts"):
        asyncio.run(judge(outputs=[None], prompts=["a"]))
