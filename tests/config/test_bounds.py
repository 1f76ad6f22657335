"""Tests of bounds: short texts that would expand or nest without end, and numbers that no option can hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlcore.config import load_yaml, parse_overrides, structure
from rlcore.config.options import MAX_DEPTH, from_json, is_too_deep
from rlcore.config.yaml_files import MAX_REPEATED, existing_path
from rlcore.errors import ConfigError
from rlcore.settings import OptimizerConfig, RunConfig

LAUGHS = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
)
MERGED = "\n".join(["a0: &a0 {x: 1}"] + [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 9)])


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("a: " + "[" * 3000, f":1:{MAX_DEPTH + 4}", "nested more than 100 deep"),
        ("a:\n  - &b [1, *b]\n", ":2:12", "the alias *b is inside the value that it repeats"),
        ("a: &b {c: {<<: *b}}\n", ":1:16", "the alias *b is inside the value that it repeats"),
        (LAUGHS, ":6:", f"the aliases repeat more than {MAX_REPEATED} values"),
        (MERGED, ":6:", f"the aliases repeat more than {MAX_REPEATED} values"),
        ("a:\n" + "".join(" " * i + "a:\n" for i in range(1, 200)), f":{MAX_DEPTH}:", "nested more than 100 deep"),
        ("a: !!bool 3\n", "", "a value does not fit its tag"),
        ("a: !!timestamp x\n", "", "a value does not fit its tag"),
        ("a: " + "9" * 5000, "", "is not valid YAML: Exceeds the limit"),
    ],
)
def test_yaml_that_expands_or_nests_without_bound_is_refused(
    tmp_path: Path, text: str, place: str, reason: str
) -> None:
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_yaml(tmp_path / "run.yaml")
    assert str(caught.value).startswith(f"{tmp_path / 'run.yaml'}{place}")
    assert reason in str(caught.value)


def test_aliases_within_the_bound_are_repeated(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("a: &a [1, 2]\nb: [*a, *a]\nc: {<<: &d {x: *a}}\n")
    assert load_yaml(tmp_path / "run.yaml") == {"a": [1, 2], "b": [[1, 2], [1, 2]], "c": {"x": [1, 2]}}


def test_an_override_of_endless_depth_is_refused() -> None:
    with pytest.raises(ConfigError, match="its key has 3000 parts; the maximum is 100"):
        parse_overrides([".".join("a" * 3000) + "=1"])


def test_json_is_bounded_as_yaml_is() -> None:
    assert from_json("[" * MAX_DEPTH + "]" * MAX_DEPTH)[0] is not None
    for text in ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), '{"a":' * 3000 + "1" + "}" * 3000, "9" * 5000):
        with pytest.raises(ValueError, match=r"nested more than 100 deep|Exceeds the limit"):
            from_json(text)


def test_a_value_that_contains_itself_is_too_deep() -> None:
    inner: dict[str, Any] = {}
    inner["again"] = [inner, inner]
    assert is_too_deep({"a": inner})
    shared: list[Any] = [1]
    for _ in range(50):  # 2**50 paths, and only 50 levels
        shared = [shared, shared]
    assert not is_too_deep(shared)


@pytest.mark.parametrize(
    ("cls", "values", "message"),
    [
        (RunConfig, {"steps": 10**30}, r"steps = 10{30}: must be a whole number of at most 64 bits"),
        (RunConfig, {"seed": -(10**30)}, r"seed = -10{30}: must be a whole number of at most 64 bits"),
        (RunConfig, {"steps": 16**5000}, r"steps = <int that cannot be printed>: must be a whole number"),
        (OptimizerConfig, {"lr": 10**400}, r"lr = 10*\.\.\.: must be a number of at most 64 bits"),
    ],
)
def test_numbers_of_more_than_64_bits_are_refused(cls: type, values: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        structure(cls, values)


def test_an_impossible_file_name_denotes_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b.txt").touch()
    (tmp_path / "loop").symlink_to("loop")
    assert existing_path("a b.txt") == Path("a b.txt")
    for name in ("gone", "x" * 5000, "a\0b", "\ud800", "~nobody_by_this_name/x", "a b.txt/x", "loop"):
        assert existing_path(name) is None, name
