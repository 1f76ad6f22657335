"""Tests of evaluation sweeps: the combinations of sampling options, and the metric for the best checkpoint."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rlcore.errors import ConfigError
from rlcore.settings import SamplingConfig
from rlcore.training.evaluate import eval_samplings, find_score

BASE = SamplingConfig(max_new_tokens=7, temperature=0.9, top_k=3, stop_sequences=("x",), eos_token_ids=(4,))


def swept(changes: dict[str, Any], base: SamplingConfig = BASE) -> dict[str, SamplingConfig]:
    return dict(eval_samplings(base, changes))


def test_without_lists_there_is_one_evaluation_without_a_suffix() -> None:
    assert swept({}) == {"": BASE}
    (only,) = swept({"temperature": 0.5, "beta": 2}).values()
    assert (only.temperature, only.beta, only.top_k, only.max_new_tokens) == (0.5, 2.0, 3, 7)


def test_evaluation_uses_the_sampling_options_of_training_unless_it_sets_its_own() -> None:
    (kept,) = swept({"top_k": 0}).values()
    assert (kept.stop_sequences, kept.eos_token_ids, kept.temperature) == (("x",), (4,), 0.9)
    (other,) = swept({"stop_sequences": ["y", "z"], "eos_token_ids": None}).values()
    assert (other.stop_sequences, other.eos_token_ids) == (("y", "z"), None)
    assert swept({"stop_sequences": []})[""].stop_sequences == ()


def test_one_list_is_swept_in_its_order() -> None:
    ways = swept({"beta": [0, 4, 100], "top_k": 5})
    assert list(ways) == ["@beta=0", "@beta=4", "@beta=100"]
    assert [(way.beta, way.top_k) for way in ways.values()] == [(0.0, 5), (4.0, 5), (100.0, 5)]


def test_several_lists_are_combined_in_the_order_they_are_written() -> None:
    ways = swept({"beta": [0, 100], "top_p": 0.9, "temperature": [0.5, 1]})
    assert {suffix: (way.beta, way.temperature, way.top_p) for suffix, way in ways.items()} == {
        "@beta=0@temperature=0.5": (0.0, 0.5, 0.9), "@beta=0@temperature=1": (0.0, 1.0, 0.9),
        "@beta=100@temperature=0.5": (100.0, 0.5, 0.9), "@beta=100@temperature=1": (100.0, 1.0, 0.9),
    }  # fmt: skip
    assert "@temperature=1@beta=0" in swept({"temperature": [1], "beta": [0]})
    assert len(swept({"beta": [0, 1], "top_k": [1, 2, 3], "temperature": [0, 1]})) == 12


def test_an_option_that_is_a_list_is_swept_by_a_list_of_lists() -> None:
    ways = swept({"stop_sequences": [["a"], ["b", "c"]]})
    assert [way.stop_sequences for way in ways.values()] == [("a",), ("b", "c")]
    assert swept({"eos_token_ids": [1, 2]})[""].eos_token_ids == (1, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temprature": [1, 2]}, r"eval.gen.*temprature.*did you mean 'temperature'"),
        ({"temperature": []}, r"eval.gen.temperature is an empty list"),
        ({"beta": [1], "temperature": []}, r"eval.gen.temperature is an empty list"),
        ({"beta": [1, 2, 1]}, r"eval.gen.beta = \[1, 2, 1\]: holds 1 twice"),
        ({"foo": ["s3cret", "s3cret"]}, r"^eval.gen: foo: no such option; there are [a-z_, ]+$"),
        ({"temperature": [0.5, -1]}, r"temperature = -1: must "),
        ({"temperature": [0.5, "1"]}, r"temperature = '1': must be a number"),
        ({"batch_size": [1, 2]}, r"eval.gen.batch_size = \[1, 2\]: cannot be a list: it does not change the samples"),
    ],
)
def test_an_option_that_cannot_be_swept_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        list(eval_samplings(BASE, changes))


METRICS = {
    "eval/reward/mean@beta=0": 1.0, "eval/reward/mean@beta=4": 3.0, "eval/reward/mean@beta=9": 2.0, "eval/loss": 0.5,
    "eval/hits@5@beta=0": 0.25, "eval/hits@5@beta=4": 0.5,
}  # fmt: skip
SUFFIXES = ["@beta=0", "@beta=4", "@beta=9"]


@pytest.mark.parametrize(
    ("metric", "mode", "score"),
    [
        ("eval/reward/mean", "max", 3.0),
        ("eval/reward/mean", "min", 1.0),
        ("eval/reward/mean@beta=9", "max", 2.0),
        ("eval/loss", "min", 0.5),
        ("eval/hits@5", "max", 0.5),
        ("eval/hits@5@beta=0", "max", 0.25),
        ("eval/reward", "max", None),
        ("eval/hits", "max", None),
        ("eval/reward/mean@beta=5", "max", None),
    ],
)
def test_a_name_without_a_suffix_stands_for_the_best_of_the_sweep(metric: str, mode: Any, score: float | None) -> None:
    assert find_score(METRICS, metric, SUFFIXES, mode) == score


def test_a_metric_that_is_not_finite_is_never_the_best() -> None:
    metrics = {"eval/m@beta=0": math.nan, "eval/m@beta=4": math.inf, "eval/m@beta=9": 2.0}
    assert find_score(metrics, "eval/m", SUFFIXES, "max") == 2.0
    broken = find_score({"eval/m@beta=0": math.nan}, "eval/m", SUFFIXES, "max")
    assert broken is not None
    assert math.isnan(broken)
