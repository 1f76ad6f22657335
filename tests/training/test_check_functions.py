"""Tests of the check of users' functions before a model is loaded: a folder without weights stands for the model."""

from __future__ import annotations

import functools
import json
import os
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rlcore
from rlcore.errors import InputsError, ModelError, RewardError
from rlcore.rewards import Rewards
from rlcore.training.build import ANSWERS, keeps_no_state
from rlcore.types import Prompt
from rlcore_testing.small import make_gpt2, make_tokenizer
from rlcore_tools.trl_functions import trl_reward

ROWS = [{"prompt": "a", "answer": "1"}, {"prompt": "b", "answer": "2"}, {"prompt": "c", "late": 3}]
CALLS: list[Any] = []
total = 0


def train(folder: Path, **given: Any) -> None:
    """Begin a PPO run whose model has no weights: whatever raises a ModelError was not stopped before."""
    make_gpt2().config.save_pretrained(folder / "model")
    run = {"root": str(folder / "runs"), "steps": 1, **given.pop("run", {})}
    inputs = {"prompts": ROWS, "reward_fn": lambda outputs: [0.0] * len(outputs), **given}
    rlcore.train(
        str(folder / "model"), tokenizer=make_tokenizer(), trainer={"name": "ppo", "rollouts": 4, "batch_size": 4},
        loggers=[], run=run, **inputs,
    )  # fmt: skip


def unparsable(outputs: list[str], answer: list[str]) -> list[float]:
    return [float(int(output) == int(right)) for output, right in zip(outputs, answer, strict=True)]


UNPARSABLE = (
    r"(?s)'unparsable' \(before the run, with prompts, batch of 2\) raised ValueError: .*test_check_functions.py.*"
    r"called as unparsable\(outputs=\['This is.*answer=\['1', '2'\]\).*are placeholders.*run.check_functions=false"
)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"reward_fn": lambda outputs, anwser: [0.0, 0.0]}, r"before the run, with prompts, .*'anwser'.*'answer'"),
        ({"reward_fn": lambda outputs, zzz: [0.0, 0.0]}, r"unknown parameter 'zzz'; known parameters:.*answer, late"),
        ({"metric_fn": lambda outputs, zzz: {}}, r"metric function 'metric' .*unknown parameter 'zzz'"),
        (
            {"reward_fn": lambda outputs, answer: [0.0] * len(answer), "eval_prompts": ["a"]},
            r"with eval_prompts, batch of 1\) has an unknown parameter 'answer'",
        ),
        ({"reward_fn": lambda outputs: "much"}, r"(?s)returned 'much'.*placeholders"),
        ({"reward_fn": lambda outputs: [0.0]}, r"(?s)returned 1 .*2.*placeholders"),
        ({"metric_fn": lambda outputs: {"a": [1.0]}}, r"(?s)metric function .*placeholders"),
    ],
)
def test_a_function_that_cannot_be_called_ends_the_run_before_a_model_is_loaded(
    tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(RewardError, match=message):
        train(tmp_path, **given)
    assert not (tmp_path / "runs").exists()


def test_a_function_that_raises_for_placeholders_is_a_warning(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ModelError):
        train(tmp_path, reward_fn=unparsable)
    assert re.search(UNPARSABLE, capfd.readouterr().err.replace("\\n", "\n"))


def appending(outputs: list[str]) -> list[float]:
    with open("judged.txt", "a") as file:  # noqa: PTH123
        file.writelines(outputs)
    return [0.0] * len(outputs)


def environing(outputs: list[str]) -> list[float]:
    os.environ["JUDGED"] = outputs[0]
    return [0.0] * len(outputs)


def test_functions_that_write_files_or_reach_the_system_are_not_called() -> None:
    assert not keeps_no_state(appending)
    assert not keeps_no_state(environing)
    assert keeps_no_state(unparsable)


def test_columns_of_files_are_passed_in_the_trial_call(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"question": "q", "answer": str(i)}) + "\n" for i in range(3))
    )
    renamed = {"data": {"columns": {"prompt": "question", "right": "answer"}}}
    for source in (str(tmp_path / "rows.jsonl"), [tmp_path / "rows.jsonl"]):
        with pytest.raises(RewardError, match=r"called as <lambda>|unknown parameter 'answer'; known .* right"):
            train(tmp_path, prompts=source, reward_fn=lambda outputs, answer: [0.0] * len(outputs), **renamed)
        with pytest.raises(ModelError):
            train(tmp_path, prompts=source, reward_fn=lambda outputs, right: list(map(float, right)), **renamed)


def test_the_trial_call_of_a_reward_can_be_disabled_and_its_signature_is_still_checked(tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        train(tmp_path, reward_fn=unparsable, run={"check_functions": False})
    with pytest.raises(RewardError, match="zzz"):
        train(tmp_path, reward_fn=lambda outputs, zzz: [0.0], run={"check_functions": False})


def counting() -> Any:
    calls = 0

    def count(outputs: list[str]) -> list[float]:
        nonlocal calls
        calls += 1
        raise AssertionError

    return count


def global_counting(outputs: list[str]) -> list[float]:
    global total  # noqa: PLW0603  a function with state
    total += 1
    raise AssertionError


class Judge:
    def __call__(self, outputs: list[str]) -> list[float]:
        raise AssertionError

    def method(self, outputs: list[str]) -> list[float]:
        raise AssertionError


def noting(outputs: list[str]) -> list[float]:
    CALLS.append(outputs)
    raise AssertionError


def with_default(outputs: list[str], *, seen: list[Any] = []) -> list[float]:  # noqa: B006  a function with state
    raise AssertionError


def decoding(outputs: list[str], tokenizer: Any) -> list[float]:
    raise AssertionError


def decoding_of_all(outputs: list[str], **given: Any) -> list[float]:
    raise AssertionError(given["tokenizer"])


def through_another(outputs: list[str]) -> list[float]:
    return [len(part) for part in (noting(outputs) for _ in outputs)]


@pytest.mark.parametrize(
    "function",
    [counting(), global_counting, Judge(), Judge().method, noting, functools.partial(noting), with_default, decoding,
     decoding_of_all, through_another, lambda outputs: [next(iter(CALLS)) for _ in outputs]],
)  # fmt: skip
def test_a_function_that_keeps_state_or_needs_the_tokenizer_is_not_called(tmp_path: Path, function: Any) -> None:
    with pytest.raises(ModelError):
        train(tmp_path, reward_fn=function)
    assert not CALLS
    assert total == 0


def test_functions_without_state_are_recognised() -> None:
    pattern, word = __import__("re").compile("x"), ("a", 1)
    assert keeps_no_state(unparsable)
    assert keeps_no_state(
        lambda outputs, **_: [float(bool(pattern.search(o)) and json.dumps(word) > o) for o in outputs]
    )
    assert keeps_no_state(functools.partial(unparsable, answer=("1",)))
    assert keeps_no_state(trl_reward(lambda completions, **_: [1.0] * len(completions)))
    assert not keeps_no_state(trl_reward(noting))


def test_the_trial_call_for_conversations_passes_their_messages_only(tmp_path: Path) -> None:
    talk = [{"prompt": [{"role": "user", "content": "why ?"}]}] * 2

    def judge(messages: list[Any], completions: list[Any] = ()) -> list[float]:  # type: ignore[assignment]
        assert [each[-1] for each in messages] == [{"role": "assistant", "content": answer} for answer in ANSWERS]
        return [0.0] * len(messages)

    def reads_the_template(prompts: list[str]) -> list[float]:
        return [prompt.index("<user>") for prompt in prompts]

    for function in (judge, reads_the_template, lambda texts: [text.index("<user>") for text in texts]):
        with pytest.raises(ModelError):
            train(tmp_path, prompts=talk, reward_fn=function)


def test_a_reward_function_with_the_signature_of_trl_is_adapted_automatically() -> None:
    def accuracy(completions: list[Any], prompts: list[Any], answer: list[str], **rest: Any) -> list[float]:
        assert {"completion_ids", "log_metric", "log_extra"} == rest.keys()
        assert not {"samples", "outputs", "messages", "tokenizer"} & rest.keys()
        texts = [each if isinstance(each, str) else each[0]["content"] for each in completions]
        return [
            2.0 * (text == right) + (prompt != "") for text, right, prompt in zip(texts, answer, prompts, strict=True)
        ]

    def by_name(completions: list[str]) -> list[float]:
        return [float(len(each)) for each in completions]

    talk = ({"role": "user", "content": "why ?"},)
    prompts = [Prompt("a", (0,), {"answer": "x"}), Prompt("b", (0,), {"answer": "y"}, talk)]
    for function, expected in ((accuracy, [3.0, 1.0]), (by_name, [1.0, 1.0])):
        for reward in (function, trl_reward(function)):
            found = Rewards.build(reward)(prompts, ["x", "z"], tokenizer=None, output_tokens=[[0], [1]])
            assert found.totals == expected


def test_a_column_named_completions_is_passed_in_place_of_trl_completions() -> None:
    prompts = [Prompt("a", (0,), {"completions": 5.0})]
    found = Rewards.build(lambda completions, outputs: completions)(prompts, ["x"], tokenizer=None, output_tokens=[[0]])
    assert found.totals == [5.0]


def test_the_trial_call_of_a_reward_does_not_change_the_run(tmp_path: Path) -> None:
    def noisy(outputs: list[str]) -> list[float]:
        return [random.random() + np.random.rand() + float(torch.rand(())) for _ in outputs]  # noqa: NPY002

    weights = []
    for check in (True, False):
        torch.manual_seed(0)
        random.seed(check)
        done = rlcore.train(
            make_gpt2(), tokenizer=make_tokenizer(), prompts=ROWS, reward_fn=noisy, loggers=[],
            gen={"max_new_tokens": 3}, trainer={"name": "ppo", "rollouts": 4, "batch_size": 4}, eval={"at_end": False},
            run={"root": str(tmp_path), "name": str(check), "steps": 1, "check_functions": check},
        )  # fmt: skip
        weights.append([parameter.detach().clone() for parameter in done.policy.module.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))


class Wordless:
    def metrics(self, step: int) -> None:
        """Take one argument too few."""

    def completions(self, step: int, rows: Any) -> None:
        """Do nothing."""

    def close(self, error: Any) -> None:
        """Do nothing."""


def test_loggers_are_checked_by_their_signatures(tmp_path: Path) -> None:
    with pytest.raises(InputsError, match=r"loggers\[0\] = .*its metrics is not metrics\(step, metrics\): too many"):
        rlcore.train(str(tmp_path), trainer="sft", samples=["a"], loggers=[Wordless()])
