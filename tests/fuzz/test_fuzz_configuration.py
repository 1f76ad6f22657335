"""Fuzz tests of configurations: YAML text, overrides and sections of any shape give a value or a message."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import attrs
import pytest
from fuzzing import VALUES, result_or_message
from hypothesis import given
from hypothesis import strategies as st

from rlcore.config import structure, unstructure
from rlcore.config.yaml_files import dump_yaml, load_yaml, parse_overrides
from rlcore.errors import ConfigError
from rlcore.settings import TrainConfig

YAML_PIECES = st.sampled_from(
    ["a", "run", ": ", "\n", "  ", "- ", "[", "]", "{", "}", "&x ", "*x", "<<: ", "!!int ", "!!python/object:os.x ",
     "? ", "|", ">", "'", '"', "#", "---\n", "...\n", "%YAML 3.0\n", "0x", "1e", ".inf", ".nan", "\t", "\ufeff", "é",
     "1" * 5000]
)  # fmt: skip
SECTIONS = [field.name for field in attrs.fields(TrainConfig)]
OPTIONS = [
    (section.name, option.name)
    for section in attrs.fields(TrainConfig)
    if attrs.has(type(getattr(TrainConfig(), section.name)))
    for option in attrs.fields(type(getattr(TrainConfig(), section.name)))
]


def _same(left: Any, right: Any) -> bool:
    """Compare plain values by type and value; nan equals nan."""
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or (left, math.copysign(1, left)) == (
            right,
            math.copysign(1, right),
        )
    return type(left) is type(right) and bool(left == right)


@given(st.lists(YAML_PIECES | st.text(max_size=5), max_size=30).map("".join))
def test_any_text_is_read_as_a_mapping_or_gives_a_clear_error(here: Path, text: str) -> None:
    file = here / "x.yaml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    read = result_or_message(lambda: load_yaml(file), ConfigError)
    assert isinstance(read, dict | ConfigError)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_as_a_mapping_or_give_a_clear_error(here: Path, content: bytes) -> None:
    (here / "x.yaml").write_bytes(content)
    assert isinstance(result_or_message(lambda: load_yaml("x.yaml"), ConfigError), dict | ConfigError)


@given(st.dictionaries(st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1), VALUES, max_size=4))
def test_values_written_as_yaml_are_read_unchanged(here: Path, values: dict[str, Any]) -> None:
    (here / "x.yaml").write_text(result_or_message(lambda: dump_yaml(values)), encoding="utf-8", errors="surrogatepass")
    read = result_or_message(lambda: load_yaml("x.yaml"), ConfigError)
    assert isinstance(read, ConfigError) or _same(read, values), (read, values)


@given(
    st.lists(
        st.text(max_size=20) | st.builds("{}.{}={}".format, st.sampled_from(SECTIONS), st.text(max_size=5), VALUES)
    )
)
def test_any_arguments_are_read_as_overrides_or_give_a_clear_error(arguments: list[str]) -> None:
    assert isinstance(result_or_message(lambda: parse_overrides(arguments), ConfigError), dict | ConfigError)


@given(st.dictionaries(st.sampled_from(SECTIONS) | st.text(max_size=5), VALUES, max_size=3))
def test_any_sections_are_a_configuration_or_give_a_clear_error(values: dict[str, Any]) -> None:
    made = result_or_message(lambda: structure(TrainConfig, values), ConfigError)
    assert isinstance(made, TrainConfig | ConfigError)


@pytest.mark.slow
@pytest.mark.parametrize(("section", "option"), OPTIONS)
@given(value=VALUES)
def test_an_option_keeps_its_value_or_is_refused_by_name(section: str, option: str, value: Any) -> None:
    made = result_or_message(lambda: structure(TrainConfig, {section: {option: value}}), ConfigError)
    if isinstance(made, ConfigError):
        assert f"{section}.{option}" in str(made)
    else:
        again = structure(TrainConfig, unstructure(made))
        assert repr(again) == repr(made)
