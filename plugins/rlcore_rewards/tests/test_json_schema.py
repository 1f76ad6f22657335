"""Tests of the reward json_schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlcore.errors import ConfigError, RewardError
from rlcore_rewards.config import JsonSchemaConfig
from rlcore_rewards.json_schema import JsonSchema

PERSON = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


@pytest.mark.parametrize(
    ("options", "output", "reward"),
    [
        ({}, ' {"a": [1, null]}\n', 1.0),
        ({}, "null", 1.0),
        ({}, "{'a': 1}", 0.0),
        ({}, "[NaN]", 0.0),
        ({}, "", 0.0),
        ({}, "[" * 100_000, 0.0),
        ({"schema": PERSON}, '{"age": 3}', 1.0),
        ({"schema": PERSON}, '{"age": "3"}', 0.0),
        ({"schema": PERSON, "parsed": 0.25}, '{"age": "3"}', 0.25),
        ({"schema": PERSON, "parsed": 0.25}, "no", 0.0),
        ({"schema": PERSON}, 'Here: {"age": 3}', 0.0),
        ({"schema": PERSON, "find": "first"}, 'Here {it} is: {"age": 3}, and {"age": "4"}', 1.0),
        ({"schema": PERSON, "find": "fenced"}, '```json\n{"age": "x"}\n```\nor\n```\n{"age": 3}\n```\n', 1.0),
        ({"schema": PERSON, "find": "fenced"}, '{"age": 3}', 0.0),
        ({"schema": {"type": "string", "format": "ipv4"}}, '"1.2.3"', 1.0),
        ({"schema": {"type": "string", "format": "ipv4"}, "formats": True}, '"1.2.3"', 0.0),
    ],
)
def test_json_schema_parses_and_validates(options: dict[str, Any], output: str, reward: float) -> None:
    assert JsonSchema(JsonSchemaConfig(**options))(outputs=[output]) == [reward]


def test_a_schema_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(PERSON))
    reward = JsonSchema(JsonSchemaConfig(schema=str(tmp_path / "schema.json")))
    assert reward(outputs=['{"age": 3}', "{}"]) == [1.0, 0.0]


def test_each_prompt_may_have_its_schema() -> None:
    reward = JsonSchema(JsonSchemaConfig(column="form"))
    forms = [{"type": "integer"}, '{"type": "string"}', None, {"type": "integer"}]
    assert reward(outputs=["1", "1", "1", '"a"'], form=forms) == [1.0, 0.0, None, 0.0]


def test_invalid_schemas_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"json_schema\.schema: is no JSON schema: 'numbr' is not valid"):
        JsonSchema(JsonSchemaConfig(schema={"type": "numbr"}))
    with pytest.raises(
        ConfigError, match=r"json_schema\.schema = 'nowhere\.json': cannot be read as a file: .*No such"
    ):
        JsonSchema(JsonSchemaConfig(schema="nowhere.json"))
    (tmp_path / "schema.json").write_text("{")
    with pytest.raises(ConfigError, match="the file is no JSON: Expecting property name"):
        JsonSchema(JsonSchemaConfig(schema=str(tmp_path / "schema.json")))
    with pytest.raises(ConfigError, match=r"json_schema\.schema = 3: must be a mapping, or the path of a JSON file"):
        JsonSchema(JsonSchemaConfig(schema=3))
    with pytest.raises(ConfigError, match="are both set; leave one out"):
        JsonSchema(JsonSchemaConfig(schema={}, column="form"))
    with pytest.raises(RewardError, match="sample 0, column 'form': is no JSON schema: -1 is less than the minimum"):
        JsonSchema(JsonSchemaConfig(column="form"))(outputs=["1"], form=[{"minLength": -1}])
    with pytest.raises(RewardError, match="sample 1, column 'form': 'x' is no JSON; give a JSON schema"):
        JsonSchema(JsonSchemaConfig(column="form"))(outputs=["1", "1"], form=[{}, "x"])


@pytest.mark.parametrize(("number", "reward"), [("1e400", 0.0), ("[1e999]", 0.0), ("1" * 4000, 0.25), ("7", 1.0)])
def test_numbers_beyond_those_of_python_end_no_run(number: str, reward: float) -> None:
    schema = {"multipleOf": 0.5, "type": "number"}
    assert JsonSchema(JsonSchemaConfig(schema=schema, parsed=0.25))(outputs=[number]) == [reward]


@pytest.mark.parametrize("schema", [3, "3", "[1]", '"text"', "null"])
def test_a_column_with_other_json_than_a_schema_is_named(schema: Any) -> None:
    with pytest.raises(RewardError, match=r"sample 0, column 'shape': .* is no JSON schema"):
        JsonSchema(JsonSchemaConfig(column="shape"))(outputs=["1"], shape=[schema])


def test_references_are_not_loaded_from_the_network() -> None:
    reward = JsonSchema(JsonSchemaConfig(schema={"$ref": "http://127.0.0.1:9/schema.json"}))
    with pytest.raises(
        RewardError, match=r"the reference 'http://127.0.0.1:9/schema.json' leads nowhere in the schema"
    ):
        reward(outputs=["1"])
    inside = {"$defs": {"age": {"type": "integer"}}, "$ref": "#/$defs/age"}
    assert JsonSchema(JsonSchemaConfig(schema=inside))(outputs=["1", '"1"']) == [1.0, 0.0]
