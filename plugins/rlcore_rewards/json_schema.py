"""The reward `json_schema`: 1 for JSON that fits a schema, `parsed` for other JSON, 0 for everything else."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rlcore.errors import ConfigError, RewardError
from rlcore_rewards.config import JsonSchemaConfig
from rlcore_rewards.parts import Tally, after, last_block, load, refuse_misfit, refuse_missing, signature

NOTHING = object()
"""Stands for an output without JSON; None is the JSON null."""


class JsonSchema:
    """A reward function that parses outputs as JSON and validates them.

    References in a schema are looked up in the schema itself and in the meta-schemas, never on the network.

    Args:
        config: the options.

    Raises:
        ConfigError: the schema is invalid or cannot be read, or both `schema` and `column` are set.
        PluginError: jsonschema is not installed.
    """

    def __init__(self, config: JsonSchemaConfig) -> None:
        self.config = config
        self._library = load("jsonschema", reward="json_schema", extra="json")
        self._unresolvable = load("referencing.exceptions", reward="json_schema", extra="json").Unresolvable
        self._validators: dict[str, object] = {}
        self._tally = Tally("json_schema")
        if config.schema is not None and config.column is not None:
            raise ConfigError(
                f"json_schema.schema and json_schema.column = {config.column!r} are both set; leave one out"
            )
        schema = True if config.schema is None else _read_schema(config.schema)
        try:
            self._validator = self._build(schema)
        except self._library.SchemaError as error:
            raise ConfigError(f"json_schema.schema: is no JSON schema: {_describe(error)}") from error
        self.__signature__ = signature("json_schema.column", [config.column])

    def __call__(self, *, outputs: Sequence[str], **columns: Sequence[object]) -> list[float | None]:
        """Return the reward of each output, and None for a row without a schema.

        Raises:
            RewardError: the schema of a row is invalid, or a reference in a schema cannot be resolved.
        """
        refuse_missing([*self.__signature__.parameters.values()], columns)
        refuse_misfit(outputs, columns)
        column = self.config.column
        schemas = columns[column] if column is not None else [self.config.schema] * len(outputs)
        rewards: list[float | None] = []
        for i, (output, schema) in enumerate(zip(outputs, schemas, strict=True)):
            if column is None:
                rewards.append(self._score(output, self._validator, "json_schema.schema"))
            elif schema is None:
                rewards.append(None)
            else:
                where = f"sample {i}, column '{column}'"
                rewards.append(self._score(output, self._of_row(schema, where), where))
        what = f"outputs have no schema in the column '{column}', and get no reward"
        self._tally.add(len(outputs), {what: rewards.count(None)} if None in rewards else {})
        return rewards

    def close(self) -> None:
        """Log the number of rows without a schema."""
        self._tally.close()

    def _score(self, output: str, validator: Any, where: str) -> float:
        value = self._parse(after(output, self.config.after))
        if value is NOTHING:
            return 0.0
        try:
            return 1.0 if validator.is_valid(value) else self.config.parsed
        except self._unresolvable as error:
            raise RewardError(
                f"{where}: the reference {error.ref!r} leads nowhere in the schema; nothing is loaded from the network"
            ) from error
        except (RecursionError, OverflowError):  # too deep, or a number too large for `multipleOf`
            return self.config.parsed

    def _parse(self, text: str) -> Any:
        """Return the JSON value in an output, or NOTHING."""
        if self.config.find == "fenced":
            block = last_block(text)
            return NOTHING if block is None else _decoded(block)
        return _decoded(text) if self.config.find == "whole" else _first(text)

    def _of_row(self, schema: Any, where: str) -> object:
        key = schema if isinstance(schema, str) else json.dumps(schema, default=repr)
        if key not in self._validators:
            parsed = _decoded(schema) if isinstance(schema, str) else schema
            if parsed is NOTHING:
                raise RewardError(f"{where}: {schema[:80]!r} is no JSON; give a JSON schema as a mapping or JSON text")
            if not isinstance(parsed, (Mapping, bool)):
                raise RewardError(f"{where}: {schema!r:.80} is no JSON schema; give one as a mapping or JSON text")
            try:
                self._validators[key] = self._build(parsed)
            except self._library.SchemaError as error:
                raise RewardError(f"{where}: is no JSON schema: {_describe(error)}") from error
        return self._validators[key]

    def _build(self, schema: object) -> Any:
        cls = self._library.validators.validator_for(schema, default=self._library.Draft202012Validator)
        cls.check_schema(schema)
        registry = load("jsonschema_specifications", reward="json_schema", extra="json").REGISTRY
        checker = cls.FORMAT_CHECKER if self.config.formats else None
        return cls(schema, registry=registry, format_checker=checker)


def _read_schema(source: object) -> object:
    """Return the schema of the option: a mapping, true or false, or the JSON in a file."""
    if isinstance(source, (Mapping, bool)):
        return source
    if not isinstance(source, str):
        raise ConfigError(f"json_schema.schema = {source!r}: must be a mapping, or the path of a JSON file")
    try:
        return json.loads(Path(source).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"json_schema.schema = {source!r}: cannot be read as a file: {error}") from error
    except ValueError as error:
        raise ConfigError(f"json_schema.schema = {source!r}: the file is no JSON: {error}") from error


def _decoded(text: str) -> object:
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return NOTHING


def _first(text: str) -> Any:
    """Return the first object or array in a text that is whole, or NOTHING."""
    decoder = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
    for i, character in enumerate(text):
        if character in "{[":
            try:
                return decoder.raw_decode(text, i)[0]
            except (ValueError, RecursionError):
                continue
    return NOTHING


def _refuse(constant: str) -> NoReturn:
    """Refuse NaN and infinities, which Python reads and JSON does not have."""
    raise ValueError(constant)


def _finite(text: str) -> float:
    """Refuse numbers such as 1e400, which Python reads as infinite."""
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def _describe(error: Any) -> str:
    place = ".".join(map(str, error.absolute_path))
    return f"{error.message}{f' (at {place})' if place else ''}"
