"""YAML 1.2 files and command-line overrides: `1e-5` is a number, `no` is text, and duplicate keys are errors.

Nesting and the values that aliases repeat are bounded, so that a short file cannot take all memory.

Also in this file: files and folders that options name; what to write instead of an unknown name: a near match, the
option of another section, or a synonym.
"""

from __future__ import annotations

import difflib
import errno
import functools
import inspect
import os
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import attrs
import yaml

from rlcore.config.options import MAX_DEPTH
from rlcore.errors import ConfigError, UnknownArgument

MAX_REPEATED = 100_000
"""Maximum number of values that the aliases of one document repeat, each with everything inside it."""

_TOO_DEEP = f"values are nested more than {MAX_DEPTH} deep"
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

    def __init__(self, text: str, repeats: list[str] | None = None) -> None:
        super().__init__(text)
        self._repeats = repeats
        self._depth, self._num_nodes, self._num_repeated = 0, 0, 0
        self._sizes: dict[str, int] = {}  # of each anchor whose node is complete, with all that it contains

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs lack its type
        if isinstance(event, yaml.AliasEvent):
            self._repeat(event)
            return super().compose_node(parent, index)
        if self._depth == MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, _TOO_DEEP, event.start_mark)
        before = self._num_nodes
        self._num_nodes += 1
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if event.anchor is not None:
            self._sizes[event.anchor] = self._num_nodes - before
        return node

    def fetch_flow_collection_start(self, token_class: object) -> None:
        if self.flow_level == MAX_DEPTH:  # here too, because reading brackets takes time quadratic in their depth
            raise yaml.scanner.ScannerError(None, None, _TOO_DEEP, self.get_mark())
        super().fetch_flow_collection_start(token_class)

    def _repeat(self, event: Any) -> None:
        """Count the nodes that an alias repeats; an alias without an anchor is refused later, by PyYAML."""
        problem = ""
        if event.anchor in self.anchors and event.anchor not in self._sizes:
            problem = f"the alias *{event.anchor} is inside the value that it repeats"
        size = self._sizes.get(event.anchor, 0)
        self._num_nodes += size
        self._num_repeated += size
        if self._num_repeated > MAX_REPEATED:
            problem = f"the aliases repeat more than {MAX_REPEATED} values; write fewer, or name a file of data"
        if problem:
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        seen: dict[Hashable, yaml.Node] = {}
        for key_node, value_node in node.value:
            if key_node.tag.endswith(":merge"):
                continue
            key = self.construct_object(key_node, deep=True)
            if key in seen and not self._may_repeat(key, seen[key], value_node):
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key '{key}'", key_node.start_mark)
            seen[key] = value_node
        return super().construct_mapping(node, deep=deep)

    def _may_repeat(self, key: Hashable, first: yaml.Node, second: yaml.Node) -> bool:
        """Note a key that stands twice with the same value, if such keys are allowed; return whether it is one."""
        if self._repeats is None or self.construct_object(first, deep=True) != self.construct_object(second, deep=True):
            return False
        self._repeats.append(str(key))
        return True

    def construct_integer(self, node: yaml.ScalarNode) -> int:
        text = self.construct_scalar(node)
        bases = {"0o": 8, "0x": 16}
        return int(text, bases.get(text[:2], 10))


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  # PyYAML requires a plain class attribute

    def ignore_aliases(self, _: object) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    """Quote text with Unicode's other line breaks, which would be read as a blank or as an end of the line.

    Other text of several lines, such as a chat template, is written as these lines where YAML can.
    """
    style = '"' if re.search("[\x85\u2028\u2029]", text) else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_integer)
for _tag, (_pattern, _first) in _SCALARS.items():
    for _class in (_Loader, _Dumper):
        _starts = ["" if letter == "\0" else letter for letter in _first]
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _starts)


def load_yaml(path: str | Path, *, repeats: list[str] | None = None) -> dict[str, Any]:
    """Read a YAML file that contains a mapping; an empty file is an empty mapping.

    Args:
        path: the file.
        repeats: receives the keys that a mapping has twice with equal values; by default these are an error too.

    Raises:
        ConfigError: the file is unreadable, not YAML or not a mapping; the message has the file, line and column.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is not UTF-8 text: {error}"
        raise ConfigError(f"{path}: cannot be read: {reason}") from error
    except ValueError as error:
        raise ConfigError(f"{str(path)!r}: no file can have this name: {error}") from error
    values = _parse(text, str(path), repeats)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: contains a {type(values).__name__}; must be a mapping, such as run: {{steps: 3}}")
    return values


def dump_yaml(values: Mapping[str, object]) -> str:
    """Return plain values as YAML, from which `load_yaml` returns the same values."""
    return yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def parse_overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """Parse arguments such as `trainer.clip=0.1` into nested mappings; values are YAML, and later arguments win.

    Raises:
        ConfigError: one line per argument that is not `key=value` or whose value is not YAML.
    """
    nested: dict[str, object] = {}
    errors = []
    for argument in arguments:
        key, equals, text = argument.partition("=")
        steps = key.strip().split(".")
        shown = f"{key.strip()}=..." if equals else _begin(argument)  # the value may be a secret
        if not equals or not all(step.strip() for step in steps):
            errors.append(f"'{shown}': must be written key=value, such as trainer.clip=0.1")
            continue
        if len(steps) > MAX_DEPTH:
            errors.append(f"'{shown[:40]}...': its key has {len(steps)} parts; the maximum is {MAX_DEPTH}")
            continue
        try:
            _put(nested, steps, _parse(text, f"'{shown}'"))
        except ConfigError as error:
            errors.append(str(error))
    if errors:
        raise ConfigError("\n".join(errors))
    return nested


def _parse(text: str, where: str, repeats: list[str] | None = None) -> Any:
    loader = None
    try:
        loader = _Loader(text, repeats)
        return loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        problem = _NAMED.sub(r"\1", error.problem or "")
        raise ConfigError(f"{where}{position}: is not valid YAML: {problem}") from error
    except (LookupError, AttributeError) as error:
        raise ConfigError(f"{where}: is not valid YAML: a value does not fit its tag, as in `!!bool 3`") from error
    except (yaml.YAMLError, ValueError, TypeError) as error:
        reason = str(error).splitlines() or [type(error).__name__]
        raise ConfigError(f"{where}: is not valid YAML: {reason[0]}") from error
    finally:
        if loader is not None:
            loader.dispose()


def _begin(argument: str) -> str:
    """Return the name with which an argument begins, without what follows it."""
    name = re.match(r"[\w.\[\]-]*", argument)
    begin = name[0] if name else ""
    return begin if begin == argument else f"{begin}..."


def _put(nested: dict[str, Any], steps: Sequence[str], value: object) -> None:
    for i, step in enumerate(steps[:-1]):
        nested = nested.setdefault(step, {})
        if not isinstance(nested, dict):
            raise ConfigError(f"{'.'.join(steps)}: '{'.'.join(steps[: i + 1])}' already has a value, not options")
    nested[steps[-1]] = value


_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL}


class ConfigOnly(str):
    """A hub id or folder from which only the configuration is read; the model's weights are then random.

    It is a string, so architectures pass it on like any other name of a model or a critic.
    """

    __slots__ = ()


def path_named(name: str | os.PathLike[str]) -> Path:
    """Return the path that a name denotes: `~` is the user's home, if there is one."""
    try:
        return Path(name).expanduser()
    except RuntimeError:  # no such user
        return Path(name)


def existing_path(name: str | os.PathLike[str]) -> Path | None:
    """Return the path that a name denotes, with `~` expanded, or None if nothing is there.

    A name that the file system cannot have (too long, with a null character, in the home of an unknown user) denotes
    nothing. A path that exists but cannot be examined is returned: reading it raises an error with the reason.
    """
    if not os.fspath(name):
        return None
    try:
        path = Path(name).expanduser()
        try:
            path.stat()
        except OSError as error:
            return None if error.errno in _ABSENT else path
    except (ValueError, RuntimeError):  # a null or unencodable character; no such user
        return None
    return path


P = ParamSpec("P")
R = TypeVar("R")
GROUP = "rlcore.synonyms"
MISSPELT = 0.85
"""Similarity of an unknown name to a known one (`difflib`) above which it is taken for a misspelling."""


@attrs.frozen
class Synonym:
    """What replaces a name of another library.

    Attributes:
        name: its name there.
        alternatives: dotted paths of the options that replace it here, of which a run has one group, or the name of a
            component; empty if there is no counterpart.
        how: how the value converts or which options to set, or why there is no counterpart.
    """

    name: str
    alternatives: tuple[tuple[str, ...], ...]
    how: str = ""

    @property
    def ours(self) -> str:
        """Return the options here as text."""
        return " or ".join(" and ".join(paths) for paths in self.alternatives)


_everywhere: dict[str, list[str]] = {}


def index_options(paths: Iterable[str]) -> None:
    """Register the dotted paths of the options of a whole configuration, for the errors of unknown ones."""
    for path in paths:
        known = _everywhere.setdefault(path.rpartition(".")[2], [])
        known += [path] if path not in known else []


@functools.cache
def find_synonym(name: str, kind: str = "options") -> Synonym | None:
    """Return what replaces a name of another library, by the first package that knows it.

    Args:
        name: the name, in any section.
        kind: `options`, or a kind of component, such as `optimizers`.
    """
    for point in entry_points(group=GROUP):
        with suppress(Exception):  # an error is being reported, which a broken package must not hide
            found: Synonym | None = point.load()(name, kind)
            if found is not None:
                return found
    return None


def replacement(name: str, known: Collection[str]) -> str:
    """Return what to write instead of an unknown option, as text; empty if no library has an option of this name.

    Args:
        name: the unknown option.
        known: the options of the section in which it was written; those of a trainer rule out other trainers' options.
    """
    found = find_synonym(name)
    if found is None:
        return ""
    is_trainer = "micro_batch_size" in known
    fitting = [
        paths
        for paths in found.alternatives
        if not is_trainer or not paths[0].startswith("trainer.") or paths[0].split(".")[1] in known
    ]
    if found.alternatives and not fitting:
        return ""
    use = " or ".join(" and ".join(paths) for paths in (fitting[:1] if is_trainer else fitting))
    return f"use {use}{f' ({found.how})' if found.how else ''}" if use else found.how


def unknown_name(name: str, known: list[str], *, kind: str = "option", below: Sequence[str] = ()) -> str:
    """Return what is wrong with an unknown option or argument, and what to write instead.

    Args:
        name: the unknown name.
        known: the names in its place.
        kind: what it should have been.
        below: paths of the options of this name in the sections of the same place; by default the whole
            configuration is searched.
    """
    near = difflib.get_close_matches(name, known, n=1)
    # A letter too few is likelier than the name of another library; the latter is likelier than a distant resemblance.
    is_misspelt = bool(near) and difflib.SequenceMatcher(None, name, near[0]).ratio() >= MISSPELT
    instead = "" if is_misspelt else replacement(name, known)
    elsewhere = below or ([] if find_synonym(name) else _everywhere.get(name))
    if elsewhere and not is_misspelt:
        instead = f"did you mean {' or '.join(elsewhere)}?"
    hint = instead or (f"did you mean '{near[0]}'?" if near else f"there are {', '.join(known)}")
    return f"no such {kind}; {hint}"


def explain_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function with an error for unknown arguments that names the option of that meaning."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def explained(*args: P.args, **kwargs: P.kwargs) -> R:
        unknown = [name for name in kwargs if name not in known]
        if unknown:
            raise UnknownArgument("\n".join(_explain(function.__name__, name, known) for name in unknown))
        return function(*args, **kwargs)

    return explained


def _explain(function: str, name: str, known: Collection[str]) -> str:
    found, text = find_synonym(name), unknown_name(name, list(known), kind="argument")
    groups = [_everywhere[name]] if found is None and name in _everywhere else found.alternatives if found else ()
    if not groups or "'?" in text:  # a misspelt argument
        return f"{function}: {name}: {text}"
    written = dict.fromkeys(_as_argument(path, known) for paths in groups for path in paths)
    return f"{function}: {name}: {text}; as an argument: {' or '.join(written)}"


def _as_argument(path: str, known: Collection[str]) -> str:
    section, *steps = path.split(".")
    if steps and steps[-1] in known:
        return f"{steps[-1]}=..."
    value = "..."
    for step in reversed(steps):
        value = f'{{"{step}": {value}}}'
    return f"{section}={value}"
