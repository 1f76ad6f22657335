"""YAML 1.2 files and command-line overrides: `1e-5` is a number, `no` is text, and duplicate keys are errors."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rlcore.errors import ConfigError

_SCALARS = {
    "null": (r"~|null|Null|NULL|", "~nN\0"),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
    "merge": (r"<<", "<"),
}
_NAMED = re.compile(r"(alias|anchor|tag) '.*?'")
"""Names in PyYAML's messages, which are the beginnings of values: a password may begin with *, & or !."""


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  # PyYAML requires a plain class attribute

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag.endswith(":merge"):
                continue
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key '{key}'", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)

    def construct_integer(self, node: yaml.ScalarNode) -> int:
        text = self.construct_scalar(node)
        bases = {"0o": 8, "0x": 16}
        return int(text, bases.get(text[:2], 10))


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  # PyYAML requires a plain class attribute

    def ignore_aliases(self, _: Any) -> bool:
        return True


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_integer)
for _tag, (_pattern, _first) in _SCALARS.items():
    for _class in (_Loader, _Dumper):
        _starts = ["" if letter == "\0" else letter for letter in _first]
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _starts)


def load_yaml(path: str | Path) -> dict[str, Any]:
    """Read a YAML file that contains a mapping; an empty file is an empty mapping.

    Raises:
        ConfigError: the file is unreadable, not YAML or not a mapping; the message has the file, line and column.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is not UTF-8 text: {error}"
        raise ConfigError(f"{path}: cannot be read: {reason}") from error
    values = _parse(text, str(path))
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: contains a {type(values).__name__}; must be a mapping, such as run: {{steps: 3}}")
    return values


def dump_yaml(values: Mapping[str, Any]) -> str:
    """Return plain values as YAML, from which `load_yaml` returns the same values."""
    return yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def parse_overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """Parse arguments such as `trainer.clip=0.1` into nested mappings; values are YAML, and later arguments win.

    Raises:
        ConfigError: one line per argument that is not `key=value` or whose value is not YAML.
    """
    nested: dict[str, Any] = {}
    errors = []
    for argument in arguments:
        key, equals, text = argument.partition("=")
        steps = key.strip().split(".")
        shown = f"{key.strip()}=..." if equals else _begin(argument)  # the value may be a secret
        if not equals or not all(step.strip() for step in steps):
            errors.append(f"'{shown}': must be written key=value, such as trainer.clip=0.1")
            continue
        try:
            _put(nested, steps, _parse(text, f"'{shown}'"))
        except ConfigError as error:
            errors.append(str(error))
    if errors:
        raise ConfigError("\n".join(errors))
    return nested


def _parse(text: str, where: str) -> Any:
    loader = None
    try:
        loader = _Loader(text)
        return loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        problem = _NAMED.sub(r"\1", error.problem or "")
        raise ConfigError(f"{where}{position}: is not valid YAML: {problem}") from error
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise ConfigError(f"{where}: is not valid YAML: {str(error).splitlines()[0]}") from error
    finally:
        if loader is not None:
            loader.dispose()


def _begin(argument: str) -> str:
    """Return the name with which an argument begins, without what follows it."""
    name = re.match(r"[\w.\[\]-]*", argument)
    begin = name[0] if name else ""
    return begin if begin == argument else f"{begin}..."


def _put(nested: dict[str, Any], steps: Sequence[str], value: Any) -> None:
    for i, step in enumerate(steps[:-1]):
        nested = nested.setdefault(step, {})
        if not isinstance(nested, dict):
            raise ConfigError(f"{'.'.join(steps)}: '{'.'.join(steps[: i + 1])}' already has a value, not options")
    nested[steps[-1]] = value
