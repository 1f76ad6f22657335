"""Tests of distributions: bounds, steps and values worked by hand."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from rlcore.errors import ConfigError
from rlcore_tools.sweep.space import Dimension, read_space, read_words


def one(text: str) -> Dimension:
    """Return the dimension of an option `x`."""
    (dimension,), shared = read_space(read_words([f"x={text}"]))
    assert shared == {}
    return dimension


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("uniform(0, 0.2)", FloatDistribution(0.0, 0.2)),
        ("loguniform(1e-6, 1e-4)", FloatDistribution(1e-6, 1e-4, log=True)),
        ("quniform(-1, 1, 0.5)", FloatDistribution(-1.0, 1.0, step=0.5)),
        ("int(1, 8)", IntDistribution(1, 8)),
        ("int(2,8,2)", IntDistribution(2, 8, step=2)),
        ("logint(1, 1000)", IntDistribution(1, 1000, log=True)),
        ("choice(adam, 3, 0.5, null, true)", CategoricalDistribution(["adam", 3, 0.5, None, True])),
        ("[0, 1, 2]", CategoricalDistribution([0, 1, 2])),
        ("[[0.9, 0.95], [0.9, 0.999]]", CategoricalDistribution(["[0.9, 0.95]", "[0.9, 0.999]"])),
    ],
)
def test_a_distribution_is_that_of_optuna_with_the_same_bounds(text: str, expected: Any) -> None:
    assert one(text).distribution() == expected
    again, _ = read_space({"x": one(text).text})  # as a sweep's record has it
    assert again[0].distribution() == expected


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("quniform(0.1, 0.5, 0.1)", [0.1, 0.2, 0.3, 0.4, 0.5]),  # and not 0.30000000000000004
        ("int(3, 5)", [3, 4, 5]),
        ("int(1, 7, 3)", [1, 4, 7]),
        ("[a, [1, 2], null]", ["a", [1, 2], None]),
    ],
)
def test_a_grid_has_every_value(text: str, values: list[Any]) -> None:
    dimension = one(text)
    found = [dimension.value(parameter) for parameter in dimension.grid()]
    assert found == values
    assert list(map(type, found)) == list(map(type, values))


def test_samples_are_spread_as_the_distribution_says() -> None:
    texts = {
        "log": "loguniform(1e-6, 1e-2)",
        "flat": "uniform(2, 4)",
        "steps": "quniform(0, 1, 0.25)",
        "n": "int(1, 4)",
    }
    dimensions, _ = read_space(texts)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    drawn: dict[str, list[Any]] = {name: [] for name in texts}
    for _ in range(400):
        parameters = study.ask({each.path: each.distribution() for each in dimensions}).params
        for each in dimensions:
            drawn[each.path].append(each.value(parameters[each.path]))
    decades = Counter(math.floor(math.log10(value)) for value in drawn["log"])
    assert set(decades) == {-6, -5, -4, -3}  # four decades of 100 samples each, up to chance (sigma 8.7)
    assert all(60 < count < 140 for count in decades.values())
    assert all(2 <= value <= 4 for value in drawn["flat"])
    assert 150 < sum(value < 3 for value in drawn["flat"]) < 250
    assert set(drawn["steps"]) == {0.0, 0.25, 0.5, 0.75, 1.0}
    assert Counter(map(type, drawn["n"])) == {int: 400}
    assert set(drawn["n"]) == {1, 2, 3, 4}  # both bounds are included


def test_one_value_is_shared_by_all_trials_and_later_words_win() -> None:
    dimensions, shared = read_space(read_words(["a=1", "b=[1, 2]", "a.c=int(1, 2)", "d=x", "b=3", "a.c=int(1, 9)"]))
    assert [(each.path, each.text) for each in dimensions] == [("a.c", "int(1, 9)")]
    assert shared == {"a": 1, "b": 3, "d": "x"}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("loguniform(0, 1)", r"x = loguniform\(0, 1\): the lower bound 0.0 must be above 0, because the scale is log"),
        ("uniform(1, 1)", r"the lower bound 1.0 must be below the upper bound 1.0"),
        ("uniform(2, 1)", r"the lower bound 2.0 must be below"),
        ("uniform(1)", r"needs 2 numbers: uniform\(low, high\)"),
        ("int(1, 2, 3, 4)", r"needs 2 or 3 whole numbers: int\(low, high\)"),
        ("int(1, 2.5)", r"2.5 is not a whole number"),
        ("uniform(a, 1)", r"'a' is not a finite number"),
        ("uniform(0, .inf)", r"inf is not a finite number"),
        ("uniform(false, 1)", r"False is not a finite number"),
        ("quniform(0, 1, 0.3)", r"must be a whole number of steps above the lower bound, such as 0.9"),
        ("quniform(0, 1, 0)", r"the step 0.0 must be above 0"),
        ("quniform(0, 1e300, 1)", r"there are more than 2\*\*53 steps between the bounds; choose a larger step"),
        (f"int(0, 1{'0' * 300}, 1)", r"there are more than 2\*\*53 steps between the bounds; choose a larger step"),
        ("int(1, 2, 5)", r"must be a whole number of steps above the lower bound$"),
        ("randint(1, 2)", r"no such distribution; int\(low, high\), whose upper bound is included"),
        ("loguniforn(1, 2)", r"no such distribution; did you mean loguniform\(low, high\)\?"),
        ("int(1, 2", r"x = int\(1, 2: the closing parenthesis is missing"),
        ("[]", r"needs at least one value"),
        ("[1, 2, 1.0]", r"has 1.0 twice"),
        ("choice(null, null)", r"has None twice"),
    ],
)
def test_a_wrong_distribution_is_named_with_what_to_write(text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        one(text)


def test_all_wrong_distributions_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        read_space({"a": "uniform(2, 1)", "b": "int(1, 2)", "c": []})
    assert [line.partition(" ")[0] for line in str(caught.value).splitlines()] == ["a", "c"]
