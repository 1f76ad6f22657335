"""Arguments of a call, checked against the JSON schema of the tool that the policy was shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlcore.safe_text import shorten

_TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int,), "number": (int, float), "string": (str,), "boolean": (bool,), "array": (list, tuple),
    "object": (dict,), "null": (type(None),),
}  # fmt: skip


def wrong_argument(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Return what is wrong with the values of arguments, empty if nothing is.

    Nothing is converted: `"17"` is no integer. Names that the schema does not have are not looked at.

    Args:
        arguments: of the call.
        schema: `parameters` of the tool, as `transformers` derives them from type hints.
    """
    known = schema.get("properties", {})
    return next(filter(None, (_wrong(value, known.get(name, {}), name) for name, value in arguments.items())), "")


def _wrong(value: Any, schema: Any, where: str) -> str:
    """Return what is wrong with a value at this place, empty if nothing is."""
    if not isinstance(schema, Mapping) or (value is None and schema.get("nullable")):
        return ""
    if "anyOf" in schema:
        found = [_wrong(value, each, where) for each in schema["anyOf"]]
        return "" if "" in found else "; or: ".join(found)
    named = schema.get("type", ())
    types = [named] if isinstance(named, str) else list(named)
    if types and not any(_is_of(value, name) for name in types):
        return f"{where} = {shorten(value)}: must be {' or '.join(types)}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where} = {shorten(value)}: must be one of {', '.join(map(repr, schema['enum']))}"
    parts: list[tuple[Any, Any, str]] = []
    if isinstance(value, Mapping):
        parts = [(each, schema.get("additionalProperties"), f"{where}.{key}") for key, each in value.items()]
    elif isinstance(value, list | tuple):
        first = schema.get("prefixItems", ())
        if first and len(value) != len(first):
            return f"{where} = {shorten(value)}: must have {len(first)} items"
        schemas = first or [schema.get("items")] * len(value)
        parts = [(each, of, f"{where}[{i}]") for i, (each, of) in enumerate(zip(value, schemas, strict=True))]
    return next(filter(None, (_wrong(*part) for part in parts)), "")


def _is_of(value: Any, name: str) -> bool:
    is_bool = isinstance(value, bool)  # which Python counts among the integers
    return name not in _TYPES or (isinstance(value, _TYPES[name]) and is_bool <= (name == "boolean"))
