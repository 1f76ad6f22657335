"""Tests of configuration: strict structuring with all errors at once, secrets, and the description of options."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import attrs
import numpy as np
import pytest

from rlcore.config import (
    config,
    describe,
    option,
    parse_overrides,
    structure,
    unstructure,
)
from rlcore.errors import ConfigError
from rlcore.safe_text import redact
from rlcore.settings import DataConfig, RunConfig, SamplingConfig, TrainConfig, to_record


@config
class Inner:
    lr: float = option(0.5, "how fast", gt=0, unit="per step", source="arXiv:0000.00001")
    betas: tuple[float, float] = option((0.9, 0.95), "decays", ge=0, lt=1)


@config
class Outer:
    """Options with one field of every supported type."""

    steps: int = option(4, "how many", ge=1, unit="steps")
    clip: float = option(0.2, "how far the ratio may leave 1", ge=0, le=1)
    on: bool = option(True, "whether at all")
    name: str = option("x", "a name")
    course: Literal["constant", "linear"] = option("constant", "the course")
    resume: Literal["never", "auto"] | str = option("never", "how to go on")
    ids: tuple[int, ...] | None = option(None, "some ids")
    words: tuple[str, ...] = option((), "some words")
    extra: Mapping[str, Any] = option({}, "anything by name")
    weights: Mapping[str, float] = option({}, "numbers by name")
    either: int | float = option(2, "a whole number or a number")
    any: Any = option(None, "anything")
    inner: Inner = option(Inner(lr=0.25, betas=(0.5, 0.6)), "a section")
    maybe: Inner | None = option(None, "a section, or none")


def complaint(values: Any, **place: str) -> str:
    with pytest.raises(ConfigError) as caught:
        structure(Outer, values, **place)
    return str(caught.value)


def test_an_empty_configuration_has_the_default_values() -> None:
    assert structure(Outer, {}) == Outer()
    assert structure(TrainConfig, {}) == TrainConfig()


@pytest.mark.parametrize(
    ("option_name", "value", "allowed"),
    [
        ("steps", "3", "a whole number"),
        ("steps", 2.9, "a whole number"),
        ("steps", 3.0, "a whole number"),
        ("steps", True, "a whole number"),
        ("steps", None, "a whole number"),
        ("steps", [3], "a whole number"),
        ("clip", "0.1", "a number"),
        ("clip", False, "a number"),
        ("clip", math.nan, "a number"),
        ("on", 1, "true or false"),
        ("on", "yes", "true or false"),
        ("name", 3, "text"),
        ("course", "sideways", "one of 'constant', 'linear'"),
        ("course", True, "one of 'constant', 'linear'"),
        ("resume", 3, "one of 'never', 'auto' or text"),
        ("ids", "12", "a list or null"),
        ("words", "stop", "a list"),
        ("extra", [1], "a mapping"),
        ("inner", 3, "a mapping of options"),
    ],
)
def test_a_wrong_type_is_refused_and_never_converted(option_name: str, value: Any, allowed: str) -> None:
    meaning = next(field.metadata["help"] for field in attrs.fields(Outer) if field.name == option_name)
    expected = f"run.yaml: ppo.{option_name} = {value!r}: must be {allowed} ({meaning})"
    assert complaint({option_name: value}, where="run.yaml", path="ppo") == expected


def test_an_integer_is_accepted_as_a_float_and_a_list_as_a_tuple() -> None:
    made = structure(Outer, {"clip": 1, "ids": [1, 2], "words": ["a"]})
    assert made.clip == 1.0
    assert type(made.clip) is float
    assert (made.ids, made.words) == ((1, 2), ("a",))


def test_an_integer_stays_an_integer_if_floats_are_allowed_too() -> None:
    assert [type(structure(Outer, {"either": value}).either) for value in (1, 1.0)] == [int, float]


def test_numpy_numbers_and_paths_are_converted_to_plain_values() -> None:
    made = structure(Outer, {"steps": np.int64(3), "clip": np.float32(0.5), "name": Path("a") / "b"})
    assert (made.steps, made.clip, made.name) == (3, 0.5, str(Path("a") / "b"))
    assert (type(made.steps), type(made.clip)) == (int, float)


@pytest.mark.parametrize(
    ("values", "allowed"),
    [
        ({"steps": 0}, "steps = 0: must be at least 1 (how many)"),
        ({"clip": 1.7}, "clip = 1.7: must lie in [0, 1] (how far the ratio may leave 1)"),
        ({"clip": -0.1}, "clip = -0.1: must lie in [0, 1] (how far the ratio may leave 1)"),
        ({"inner": {"lr": 0}}, "inner.lr = 0: must be greater than 0 (how fast)"),
        ({"inner": {"betas": [0.5, 1.0]}}, "inner.betas = [0.5, 1.0]: must lie in [0, 1) (decays)"),
    ],
)
def test_a_value_out_of_range_is_refused(values: Any, allowed: str) -> None:
    assert complaint(values) == allowed


def test_inclusive_ends_of_a_range_are_accepted() -> None:
    assert structure(Outer, {"clip": 0}).clip == 0
    assert structure(Outer, {"clip": 1}).clip == 1
    assert structure(Outer, {"steps": 1}).steps == 1
    assert structure(RunConfig, {"time_s": math.inf}).time_s == math.inf


@pytest.mark.parametrize("wrong", [1.7, -0.1, math.nan])
def test_ranges_are_checked_for_config_objects_too(wrong: float) -> None:
    with pytest.raises(ConfigError, match=r"Outer.clip = .*: must lie in \[0, 1\] \(how far the ratio may leave 1\)"):
        Outer(clip=wrong)


def test_all_errors_are_reported_together_each_with_its_path() -> None:
    text = complaint(
        {"clpi": 1, "steps": "3", "inner": {"lr": -1, "betas": [0.1, "x"]}, "weights": {"a": "b"}, "zzz": 1},
        where="run.yaml",
        path="ppo",
    )
    lines = text.splitlines()
    assert [re.split(" = |: ", line)[1] for line in lines] == [
        "ppo.clpi",
        "ppo.steps",
        "ppo.inner.lr",
        "ppo.inner.betas[1]",
        "ppo.weights.a",
        "ppo.zzz",
    ]
    assert lines[0] == "run.yaml: ppo.clpi: no such option; did you mean 'clip'?"
    assert "there are steps, clip, on" in lines[-1]


@config
class Account:
    api_key: str | None = option(None, "key of the account")
    tags: tuple[str, ...] = option((), "tags")


def test_no_error_shows_a_secret_or_the_value_of_an_unknown_option() -> None:
    for values in ({"apikey": "s3cret"}, {"api_key": {"a": "s3cret"}}, {"api_key": 53}, {"tags": {"x": "s3cret"}}):
        with pytest.raises(ConfigError) as caught:
            structure(Account, values, where="run.yaml", path="loggers[0]")
        assert str(caught.value).startswith(f"run.yaml: loggers[0].{next(iter(values))}")
        assert "s3cret" not in str(caught.value)
        assert "53" not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        parse_overrides(["loggers.api_key:s3cret", "a.token=[s3cret", "b.token=*s3cret", ".c=s3cret"])
    assert "s3cret" not in str(caught.value)


@config
class Pages:
    number: int = option(0, "a number")


@config
class Site:
    api_keys: tuple[int, ...] = option((), "keys, one per account")
    credentials: Pages = option(Pages(), "who logs in")
    pages: tuple[Pages, ...] = option((), "pages")


@pytest.mark.parametrize(("values", "path", "name"), [
    ({"api_keys": [1, "s3cret"]}, "", "api_keys[1]"),
    ({"credentials": {"number": "s3cret"}}, "", "credentials.number"),
    ({"pages": [{"number": 1}, {"number": "s3cret"}]}, "sites.password", "sites.password.pages[1].number"),
    ({"pages": [{"number": "s3cret"}]}, "tokens[0].hub_token[1]", "tokens[0].hub_token[1].pages[0].number"),
])  # fmt: skip
def test_no_value_is_shown_below_a_secret_whether_in_a_list_or_a_section(
    values: dict[str, object], path: str, name: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        structure(Site, values, where="run.yaml", path=path)
    assert str(caught.value).startswith(f"run.yaml: {name}: must be a whole number")
    assert "s3cret" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"run.yaml: pages\[0\].number = 'shown': "):
        structure(Site, {"pages": [{"number": "shown"}]}, where="run.yaml")


def test_a_redacted_secret_is_refused_as_a_value() -> None:
    message = r"^run.yaml: api_key: stands for a secret, which no file of a run contains: set the option \(key"
    with pytest.raises(ConfigError, match=message):
        structure(Account, redact({"api_key": "s3cret"}), where="run.yaml")
    with pytest.raises(ConfigError, match=r"^tags = 'ftp://<hidden>@host': stands for a secret"):
        structure(Account, redact({"tags": "ftp://me@host"}))


def test_a_runs_record_hides_secrets_but_not_columns_of_rows() -> None:
    rows = [{"prompt": "Guess.", "secret": "word"}]
    logger = {"name": "acme", "api_key": "s3cret"}
    record = to_record(TrainConfig(loggers=(logger,), data=DataConfig(prompts=rows, eval_prompts="ftp://me@host/x")))
    assert record["loggers"] == [{"name": "acme", "api_key": "<hidden>"}]
    assert record["data"]["prompts"] == rows
    assert record["data"]["eval_prompts"] == "ftp://<hidden>@host/x"
    assert record["run"] == unstructure(RunConfig())


def test_a_list_of_the_wrong_length_is_refused_for_a_tuple() -> None:
    assert "must be a list of 2 entries" in complaint({"inner": {"betas": [0.1]}})


def test_part_of_a_section_keeps_the_rest_of_that_sections_default() -> None:
    made = structure(Outer, {"inner": {"lr": 1}})
    assert made.inner == Inner(lr=1.0, betas=(0.5, 0.6))
    assert structure(Outer, {"maybe": {"lr": 1}}).maybe == Inner(lr=1.0, betas=(0.9, 0.95))
    assert structure(Outer, {"inner": None}).inner == Outer().inner
    assert structure(Outer, {"maybe": None}).maybe is None


def test_config_objects_are_accepted_unchanged() -> None:
    inner, outer = Inner(lr=0.125), Outer(steps=9)
    assert structure(Outer, {"inner": inner}).inner is inner
    assert structure(Outer, {"maybe": inner}).maybe is inner
    assert structure(Outer, outer) is outer
    assert "must be a mapping of options" in complaint({"inner": SamplingConfig()})


def test_an_error_of_contradicting_options_shows_their_path() -> None:
    @config
    class Pair:
        low: int = option(0, "low")
        high: int = option(1, "high")

        def __attrs_post_init__(self) -> None:
            if self.low > self.high:
                raise ConfigError("low must not exceed high")

    with pytest.raises(ConfigError, match=r"^f.yaml: pair = .*: low must not exceed high$"):
        structure(Pair, {"low": 3}, where="f.yaml", path="pair")


def test_a_structured_configuration_shares_no_mapping_with_its_input() -> None:
    given = {"extra": {"a": 1}}
    made = structure(Outer, given)
    given["extra"]["a"] = 2
    assert made.extra == {"a": 1}


def test_a_value_without_a_plain_form_is_named() -> None:
    plain = unstructure({"fn": math.floor, "path": Path("a"), "n": np.float64(2), "o": object(), "t": (1, None)})
    assert plain == {"fn": "math:floor", "path": "a", "n": 2.0, "o": "<builtins.object>", "t": [1, None]}
    assert type(plain["n"]) is float


def test_every_option_is_described_with_its_effective_default() -> None:
    rows = {row.path: row for row in describe(Outer)}
    lr = rows["inner.lr"]
    assert (lr.type, lr.default, lr.range, lr.unit, lr.source) == ("float", 0.25, "> 0", "per step", "arXiv:0000.00001")
    assert rows["maybe.lr"].default == 0.5
    assert rows["inner.betas"].range == "[0, 1)"
    assert rows["inner.betas"].default == [0.5, 0.6]
    assert rows["clip"].range == "[0, 1]"
    assert rows["resume"].type == "never | auto | text"
    assert rows["ids"].type == "[int, ...] | null"
    assert "inner" not in rows


def test_every_option_has_a_description() -> None:
    assert [row.path for row in describe(TrainConfig) if not row.meaning] == []
