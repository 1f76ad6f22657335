"""Tasks of the real library, in a Python of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from adapter_runs import train_two_steps
from verifiers_options import make

from rlcore.protocols import Turn
from rlcore_environments.process import RemoteError, isolated_factory
from rlcore_testing import Case, conformance
from rlcore_testing.law import laws_in
from rlcore_testing.laws import environments

pytestmark = pytest.mark.slow
CASES = [
    case
    for case in conformance("rlcore-environments:verifiers", options={"verifiers": {"taskset": "arithmetic_tasks"}})
    if case.values[0].law in laws_in(environments)
    and case.values[0].law.name != "another_process_plays_the_same_episode"  # it loads the environment in this Python
]


@pytest.fixture(scope="module")
def remote(verifiers_python: str) -> Iterator[Callable[..., Any]]:
    """Yield a function that returns a factory of episodes in a process with the other Python, one for equal options."""
    made: dict[str, Any] = {}

    def build(**options: Any) -> Any:
        key = repr(sorted(options.items()))
        if key not in made:
            made[key] = isolated_factory(make(**options), verifiers_python, one_each=False)
        return made[key]

    yield build
    for factory in made.values():
        factory.shutdown()


@pytest.mark.nightly
def test_rewards_and_metrics_are_those_of_the_task(remote: Any) -> None:
    factory = remote(options={"system": "Add."}, success_reward=2.0)
    assert factory.max_turns == 1
    for said, reward in (("6", 2.0), ("7", 0.0)):  # the weight of the reward is 2
        answer = factory.make()
        assert answer.reset({"task": 3}, seed=0) == [
            {"role": "system", "content": "Add."}, {"role": "user", "content": "3 plus 3 is"},
        ]  # fmt: skip
        step = answer.step(Turn(said, 0))
        assert (step["reward"], step["done"]) == ({"exact": reward}, True)
        assert step["info"] == {"letters": 1.0, "success": reward == 2.0}


@pytest.mark.nightly
def test_rows_of_the_two_splits_share_no_task(remote: Any) -> None:
    factory = remote(options={"count": 6}, eval_rows=2)
    assert indices(factory, "eval") == [0, 1]
    assert indices(factory, "train") == [2, 3, 4, 5]
    assert remote(eval_rows=0, train_rows=1).own_rows("eval") is None


def indices(factory: Any, split: str) -> list[int]:
    return [row["task"] for row in factory.own_rows(split)]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("view", "held_out", "train"), [("reversed", [11, 10], [9, 8, 7]), ("even", [0, 2], [4, 6, 8])]
)
def test_rows_find_their_tasks_in_a_taskset_that_is_shuffled_or_filtered(
    remote: Any, view: str, held_out: list[int], train: list[int]
) -> None:
    options = {"options": {"view": view}, "eval_rows": 2, "train_rows": 3}
    factory, again = remote(**options), remote(**options, timeout_s=301.0)  # a process that has returned no rows
    assert (indices(factory, "eval"), indices(factory, "train")) == (held_out, train)
    for row in [*factory.own_rows("train"), {"task": 8}]:
        answer = again.make()
        assert answer.reset(row, seed=0)[0]["content"] == f"{row['task']} plus {row['task']} is"
        assert answer.step(Turn(str(2 * row["task"]), 0))["reward"] == {"exact": 2.0}


@pytest.mark.nightly
def test_tasks_with_the_prompt_of_one_to_evaluate_on_are_not_trained_on(remote: Any) -> None:
    assert indices(remote(options={"modulus": 5}, eval_rows=2), "train") == [2, 3, 4, 7, 8, 9]  # 12 tasks
    with pytest.raises(RemoteError, match="every task to train on has the prompt of one to evaluate on; lower eval_r"):
        remote(options={"modulus": 5}, eval_rows=5).own_rows("train")


@pytest.mark.nightly
@pytest.mark.parametrize(("row", "named"), [({"task": 0, "key": "f" * 64}, "key 'ffff"), ({"task": 12}, "index 12")])
def test_a_task_that_the_taskset_does_not_return_again_is_a_failure(remote: Any, row: Any, named: str) -> None:
    with pytest.raises(RemoteError, match=f"has no task with the {named}.*; .* give its shuffle a seed"):
        remote().make().reset(row, seed=0)


@pytest.mark.nightly
def test_an_endless_taskset_is_read_as_far_as_rows_need_it(remote: Any) -> None:
    factory = remote(options={"count": 10**9}, eval_rows=2, train_rows=3)
    assert indices(factory, "train") == [2, 3, 4]
    assert factory.make().reset({"task": 20}, seed=0)[0]["content"] == "20 plus 20 is"
    with pytest.raises(RemoteError, match="has no task with the key 'ffff"):
        factory.make().reset({"key": "f" * 64}, seed=0)


@pytest.mark.nightly
def test_answers_in_turns_are_the_same_as_one_after_the_other(remote: Any) -> None:
    factory = remote()
    first, second = factory.make(), factory.make()
    assert first.reset({"task": 1}, seed=0) == [{"role": "user", "content": "1 plus 1 is"}]
    assert second.reset({"task": 4}, seed=0) == [{"role": "user", "content": "4 plus 4 is"}]
    assert first.step(Turn("2", 0))["reward"] == {"exact": 2.0}
    assert second.step(Turn("2", 0))["reward"] == {"exact": 0.0}


@pytest.mark.nightly
def test_failures_are_raised(remote: Any) -> None:
    answer = remote().make()
    answer.reset({"task": 1}, seed=0)
    with pytest.raises(RemoteError, match="ArithmeticError: no such sum"):
        answer.step(Turn("raise", 0))
    with pytest.raises(RemoteError, match="the taskset 'arithmetic_tasks' has 12 tasks or fewer; lower eval_rows"):
        remote(eval_rows=12).own_rows("train")
    with pytest.raises(RemoteError, match="no_such_tasks"):
        remote(taskset="no_such_tasks").own_rows("train")
    with pytest.raises(RemoteError, match="counts"):
        remote(options={"counts": 3}).own_rows("train")


@pytest.mark.nightly
@pytest.mark.parametrize("law", CASES)
def test_law_of_environments(law: Case, remote: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "rlcore_environments.answers.factory_of", lambda given: remote(eval_rows=2)
    )  # in the other Python
    law()


def test_grpo_trains_two_steps(verifiers_python: str, tmp_path: Path) -> None:
    options = {"name": "verifiers", "taskset": "arithmetic_tasks"}
    result = train_two_steps(tmp_path, options, isolate="process", python=verifiers_python)
    assert result.metrics["episode/turns"] == 1.0
    ends = [result.metrics[f"eval/episode/{end}"] for end in ("done", "truncated")]
    assert sum(ends) == 1.0  # a last turn that its limit cuts is truncated
    assert 0.0 < result.metrics["environment/letters"] <= 3.0
    assert result.metrics["environment/exact"] == result.metrics["reward/mean"] == 0.0  # the policy writes letters
