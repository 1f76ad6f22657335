"""Tests of rewards built by name, and of the errors if a library or a column is missing."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from rlcore.errors import ConfigError, PluginError, RewardError
from rlcore_rewards import build_reward
from rlcore_rewards.config import JsonSchemaConfig, LanguageConfig
from rlcore_rewards.json_schema import JsonSchema
from rlcore_rewards.language import Language


@pytest.mark.parametrize(
    ("module", "build", "message"),
    [
        ("jsonschema", lambda: JsonSchema(JsonSchemaConfig()), "reward 'json_schema' needs jsonschema, .*[json]"),
        (
            "lingua",
            lambda: Language(LanguageConfig(language="de")),
            "reward 'language' needs lingua, .*[language]",
        ),
    ],
)
def test_a_missing_library_names_what_installs_it(
    monkeypatch: pytest.MonkeyPatch, module: str, build: Any, message: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    before, _, extra = message.partition(".*")
    with pytest.raises(PluginError) as raised:
        build()
    assert str(raised.value).startswith(before)
    assert str(raised.value).endswith(f"pip install 'rlcore-rewards{extra}'")


def test_a_reward_is_built_by_its_name_outside_a_run() -> None:
    assert build_reward("regex", pattern="a")(outputs=["a", "b"]) == [1.0, 0.0]
    with pytest.raises(ConfigError) as raised:
        build_reward("regex", pattern=3)
    assert str(raised.value).startswith("regex.pattern = 3: must be text")
    with pytest.raises(
        ConfigError, match=r"no reward 'regx'; did you mean 'regex'\? It has math_accuracy, exact_match"
    ):
        build_reward("regx")


@pytest.mark.parametrize("name", ["exact_match", "math_accuracy", "code_tests"])
def test_a_reward_that_is_called_without_its_column_names_those_it_has(name: str) -> None:
    reward = build_reward(name)
    with pytest.raises(RewardError, match=rf"finds no column '\w+' of {name}.column in the prompts; they have 'answr'"):
        reward(outputs=["1"], answr=["1"])
