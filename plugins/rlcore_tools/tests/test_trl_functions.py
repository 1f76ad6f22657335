"""Tests of conversations in reward functions, and of reward functions in the form of TRL."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from rlcore.errors import RewardError
from rlcore.rewards import Rewards
from rlcore.rewards.values import call_metric
from rlcore.settings import DataConfig
from rlcore.types import Prompt
from rlcore_testing.small import make_tokenizer
from rlcore_tools.trl_functions import trl_reward
from rlcore_transformers.data.prompts import build_prompts

CHAT = [{"role": "system", "content": "short."}, {"role": "user", "content": "hi"}]
PREFILLED = [*CHAT, {"role": "assistant", "content": "well "}]


def score(reward_fn: Any, prompts: list[Prompt], outputs: list[str]) -> list[float | None]:
    rewards = Rewards.build(reward_fn)
    tokens = [[1] * len(output) for output in outputs]
    batch = rewards(prompts, outputs, tokenizer=make_tokenizer(), output_tokens=tokens)
    (values,) = batch.by_name.values()
    return values


def test_a_reward_function_may_ask_for_the_conversation_with_the_answer() -> None:
    seen: list[Any] = []

    def reward(messages: list[Any]) -> list[float]:
        seen.extend(messages)
        return [0.0] * len(messages)

    prompts = [Prompt("x", (), messages=CHAT), Prompt("plain", ()), Prompt("x", (), messages=PREFILLED)]
    score(reward, prompts, ["yes", "no", "ok"])
    answer = {"role": "assistant", "content": "yes"}
    assert seen == [[*CHAT, answer], None, [*CHAT, {"role": "assistant", "content": "well ok"}]]
    assert PREFILLED[-1]["content"] == "well "


def test_prompts_keep_their_messages_and_every_column_reaches_the_function() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    prompts = build_prompts([{"prompt": CHAT, "answer": "yes"}], tokenizer, DataConfig(), max_length=0)
    assert prompts[0].messages == CHAT

    def reward(messages: list[Any], answer: list[str], **columns: Any) -> list[float]:
        assert {"samples", "prompts", "outputs", "output_tokens", "tokenizer"} == columns.keys()
        return [float(each[-1]["content"] == wanted) for each, wanted in zip(messages, answer, strict=True)]

    assert score(reward, prompts, ["yes"]) == [1.0]


def named(messages: list[Any]) -> list[float]:
    return [0.0] * len(messages)


def of_trl(completions: list[str]) -> list[float]:
    return [0.0] * len(completions)


def of_ids(completion_ids: list[Any]) -> list[float]:
    return [0.0] * len(completion_ids)


def of_all(prompts: list[Any], completions: list[str], **kwargs: Any) -> list[float]:
    return [0.0] * len(completions)


def with_state(completions: list[str], trainer_state: Any = None) -> list[float]:
    return [0.0] * len(completions)


@pytest.mark.parametrize(
    ("function", "column", "said"),
    [
        (named, "messages", r"'named' \(batch of 1\) takes 'messages', which is an argument of its own .* rename the"),
        (of_trl, "completions", r"'of_trl' .* of which 'completions' is an argument, and the prompts have a column"),
        (of_trl, "completion_ids", "of which 'completion_ids' is an argument"),
        (of_ids, "completion_ids", "of which 'completion_ids' is an argument"),
        (of_ids, "completions", "of which 'completions' is an argument"),
        (of_all, "trainer_state", "of which 'trainer_state' is an argument"),
        (with_state, "trainer_state", r"of which 'trainer_state' is an argument.*rename the column \(data.columns\)"),
        (trl_reward(of_ids), "completions", "of which 'completions' is an argument"),
    ],
)
def test_a_column_that_would_hide_what_a_function_should_get_is_refused(function: Any, column: str, said: str) -> None:
    """`samples` and `outputs` are refused when the prompts are read, whatever the functions take."""
    prompts = [Prompt("a", (), {column: "a value of the data set"})]
    with pytest.raises(RewardError, match=said):
        score(function, prompts, ["yes"])
    with pytest.raises(RewardError, match=said):
        call_metric(function, prompts, ["yes"], None, output_tokens=[[1]])


def test_a_column_that_a_function_receives_under_no_name_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    def takes_all(outputs: list[str], **kwargs: Any) -> list[float]:
        assert kwargs["messages"] == [None]
        return [1.0]

    prompts = [Prompt("a", (), {"messages": "a value of the data set", "answer": "b"})]
    assert [score(takes_all, prompts, ["yes"]) for _ in range(2)] == [[1.0], [1.0]]
    said = capsys.readouterr().err
    assert said.count("functions do not receive them") == 1
    assert "columns=['messages']" in said
    assert "function=takes_all" in said


def accuracy_reward(completions: Any, solution: list[str], **kwargs: Any) -> list[float | None]:
    """Score as TRL's examples do: by the content of the first message, None where it does not apply."""
    kwargs["log_metric"]("accuracy", 1.0)
    kwargs["log_extra"]("column", [])
    assert kwargs.get("trainer_state") is None
    assert "samples" not in kwargs
    contents = [completion[0]["content"] for completion in completions]
    return [None if wanted == "" else float(text == wanted) for text, wanted in zip(contents, solution, strict=True)]


def test_a_reward_function_of_trl_works_as_it_is() -> None:
    prompts = [Prompt("x", (), {"solution": wanted}, CHAT) for wanted in ("4", "5", "")]
    assert score(trl_reward(accuracy_reward), prompts, ["4", "4", "4"]) == [1.0, 0.0, None]
    assert Rewards.build(trl_reward(functools.partial(accuracy_reward))).names == ("accuracy_reward",)


def test_plain_prompts_and_prefilled_conversations_arrive_as_in_trl() -> None:
    seen: dict[str, Any] = {}

    def reward(prompts: list[Any], completions: list[Any], completion_ids: list[list[int]]) -> list[float]:
        seen.update(prompts=prompts, completions=completions, ids=completion_ids)
        return [0.0] * len(prompts)

    score(trl_reward(reward), [Prompt("ask", ()), Prompt("x", (), messages=PREFILLED)], ["yes", "no"])
    assert seen["prompts"] == ["ask", PREFILLED]
    assert seen["completions"] == ["yes", [{"role": "assistant", "content": "no"}]]
    assert seen["ids"] == [[1, 1, 1], [1, 1]]


def test_coroutine_functions_of_trl_are_awaited_and_wrong_lengths_refused() -> None:
    async def later(prompts: list[str], completions: list[str], **kwargs: Any) -> list[float]:
        return [float(len(each)) for each in completions]

    assert score(trl_reward(later), [Prompt("a", ()), Prompt("b", ())], ["yes", "no"]) == [3.0, 2.0]
    with pytest.raises(RewardError, match=r"reward function 'one' .* returned 1 values for 2 samples"):
        score(trl_reward(_one), [Prompt("a", ()), Prompt("b", ())], ["yes", "no"])


def _one(completions: list[str]) -> list[float]:
    return [1.0]


_one.__name__ = "one"
