from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from rlcore.errors import PluginError
from rlcore_rewards.config import MathAccuracyConfig
from rlcore_rewards.math_accuracy import MathAccuracy


@pytest.fixture(scope="module")
def reward() -> Iterator[MathAccuracy]:
    reward = MathAccuracy(MathAccuracyConfig())
    yield reward
    reward.close()


@pytest.mark.parametrize(
    ("gold", "output", "expected"),
    [
        ("42", "The answer is 42.", 1.0),
        ("42", "The answer is 41.", 0.0),
        ("1/2", r"so \boxed{\frac{1}{2}}", 1.0),
        (r"\frac{1}{2}", "It is 0.5", 1.0),
        ("1,000", r"\boxed{1000}", 1.0),
        ("x^2+1", "$1+x^2$", 1.0),  # without dollars, the column is read as LaTeX
        (r"$\{1,2\}$", r"$\{2,1\}$", 1.0),
        ("4", r"first \boxed{3}, then \boxed{4}", 0.0),  # math-verify reads both boxes, as a set
        (42, "42", 1.0),
        ("42", "no idea", 0.0),  # unparsed
        ("x^", "42", None),  # no mathematics
        ("42", "$x^$", 0.0),
        (None, "42", None),
    ],
)
def test_answers_are_compared_as_mathematics(reward: MathAccuracy, gold: Any, output: str, expected: Any) -> None:
    assert reward(outputs=[output], answer=[gold]) == [expected]


def test_what_cannot_be_parsed_is_counted_and_may_have_a_reward_of_its_own() -> None:
    rows: dict[str, Any] = {"outputs": ["4", "no", "five", "4"], "answer": ["4", "4", "4", "???"]}
    expected = {0.0: [1.0, 0.0, 0.0, None], -0.5: [1.0, -0.5, -0.5, None], None: [1.0, None, None, None]}
    for unparsed, rewards in expected.items():
        reward = MathAccuracy(MathAccuracyConfig(unparsed=unparsed))
        assert reward(**rows) == rewards
        gets = "no reward" if unparsed is None else f"{unparsed:g}"
        assert reward._tally.counts == {
            f"outputs have no answer that can be parsed, and get {gets}": 2,
            "outputs have no answer in the column 'answer' that can be parsed, and get no reward": 1,
        }


def test_parsed_reports_what_accuracy_could_compare() -> None:
    reward = MathAccuracy(MathAccuracyConfig(report="parsed"))
    assert reward(outputs=["4", "5", "no", "4"], answer=["4", "4", "4", "???"]) == [1.0, 1.0, 0.0, None]
    assert reward._tally.counts == {}


@pytest.mark.slow
def test_an_answer_that_would_fill_the_memory_or_never_end_counts_as_unparsed() -> None:
    reward = MathAccuracy(MathAccuracyConfig(timeout_s=0.5, memory_mb=1024))
    hard = ["$10^{10^{10}}$", "$9^{9^{9^{9}}}$"]
    assert reward(outputs=hard, answer=["2", "2"]) == [0.0, 0.0]
    (what,) = reward._tally.counts
    assert what.startswith("outputs took longer than math_accuracy.timeout_s = 0.5, or more memory than")
    reward.close()


@pytest.mark.slow
def test_several_processes_compare() -> None:
    outputs, golds = [f"it is {i % 7}" for i in range(40)], [str(i % 5) for i in range(40)]
    several = MathAccuracy(MathAccuracyConfig(processes=2))
    assert several(outputs=outputs, answer=golds) == [float(i % 7 == i % 5) for i in range(40)]
    several.close()


def test_a_process_that_was_killed_is_started_again(reward: MathAccuracy) -> None:
    assert reward(outputs=["1"], answer=["1"]) == [1.0]
    process = reward._processes._workers[0]._process
    assert process is not None
    process.kill()
    process.wait()
    assert reward(outputs=["111"], answer=["111"]) == [0.0]  # this comparison is lost, and counted
    assert reward(outputs=["112"], answer=["112"]) == [1.0]


def test_a_missing_library_names_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(PluginError, match=r"needs math_verify, .*: pip install 'rlcore-rewards\[math\]'"):
        MathAccuracy(MathAccuracyConfig())
