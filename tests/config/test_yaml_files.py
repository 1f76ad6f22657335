"""Tests of YAML files, of overrides from the command line, and of merging them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from rlcore.config import (
    dump_yaml,
    load_yaml,
    merge,
    parse_overrides,
    structure,
    unstructure,
)
from rlcore.errors import ConfigError
from rlcore.settings import TrainConfig


def test_the_whole_configuration_survives_writing_and_reading_yaml(tmp_path: Path) -> None:
    original = structure(
        TrainConfig,
        {"gen": {"stop_sequences": ["\n", "no", "1e-5"], "temperature": 1e-5}, "run": {"time_s": math.inf}},
    )
    path = tmp_path / "config.yaml"
    path.write_text(dump_yaml(unstructure(original)), encoding="utf-8")
    assert structure(TrainConfig, load_yaml(path)) == original


def test_merging_changes_neither_mapping() -> None:
    base, over = {"a": {"b": 1, "c": {"d": 2}}, "e": [1]}, {"a": {"c": {"f": 3}, "b": None}, "e": [2], "g": {"h": 1}}
    merged = merge(base, over)
    assert merged == {"a": {"b": None, "c": {"d": 2, "f": 3}}, "e": [2], "g": {"h": 1}}
    merged["a"]["c"]["d"] = merged["g"]["h"] = 9
    assert base == {"a": {"b": 1, "c": {"d": 2}}, "e": [1]}
    assert over["g"] == {"h": 1}


def test_overrides_are_yaml_values_at_dotted_paths() -> None:
    parsed = parse_overrides(["a.b=1e-3", "a.c=[x, y]", "d=", "e=no", "f=mod:fn", "g=a=b", "a.b=2"])
    assert parsed == {"a": {"b": 2, "c": ["x", "y"]}, "d": None, "e": "no", "f": "mod:fn", "g": "a=b"}


def test_every_unusable_override_is_reported() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_overrides(["a=1", "a.b=2", "c", "d=[1", ".=2"])
    first, second, third, fourth = str(caught.value).splitlines()
    assert first == "a.b: 'a' already has a value, not options"
    assert second == "'c': must be written key=value, such as trainer.clip=0.1"
    assert third.startswith("'d=...':1:3: is not valid YAML")
    assert fourth.startswith("'.=...': must be written key=value")


def test_yaml_is_read_by_its_1_2_standard(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "a: 1e-5\nb: no\nc: 010\nd: 2020-01-01\ne: 1:30\nf: true\ng: ~\nh: 0x1F\ni: -.inf\nj: .5\n"
        "k: &k {x: 1}\nl: {<<: *k, y: 2}\n"
    )
    assert load_yaml(path) == {
        "a": 1e-5, "b": "no", "c": 10, "d": "2020-01-01", "e": "1:30", "f": True, "g": None, "h": 31, "i": -math.inf,
        "j": 0.5, "k": {"x": 1}, "l": {"x": 1, "y": 2},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2\n", ":4:3", "duplicate key 'c'"),
        ("a: [1", ":1:6", "expected ',' or ']'"),
        ("a: 1\nb: c: d\n", ":2:5", "mapping values are not allowed here"),
        ("a: !!python/object:os.system {}\n", ":1:4", "could not determine a constructor"),
        ("- 1\n", "", "contains a list"),
        ("just text\n", "", "contains a str"),
        ("a: \x00\n", "", "unacceptable character"),
    ],
)
def test_an_error_in_a_yaml_file_shows_its_place(tmp_path: Path, text: str, place: str, reason: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_yaml(path)
    assert str(caught.value).startswith(f"{path}{place}: ")
    assert reason in str(caught.value)


def test_a_missing_or_binary_file_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'a\\x00b': no file can have this name"):
        load_yaml("a\0b")
    with pytest.raises(ConfigError, match=r"absent\.yaml: cannot be read: No such file"):
        load_yaml(tmp_path / "absent.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ConfigError, match=r"bytes\.yaml: cannot be read: it is not UTF-8"):
        load_yaml(tmp_path / "bytes.yaml")
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert load_yaml(tmp_path / "empty.yaml") == {}
