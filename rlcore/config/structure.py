"""Strict construction of config objects from plain values, with all errors reported at once."""

from __future__ import annotations

import difflib
import math
import numbers
import os
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, cast

import attrs
from cattrs import Converter

from rlcore.config.options import (
    arms,
    default_of,
    describe,
    fields,
    is_list,
    is_mapping,
    phrase,
    range_error,
    section_class,
)
from rlcore.config.yaml_files import unknown_name
from rlcore.errors import ConfigError
from rlcore.safe_text import HIDDEN, is_secret, show

C = TypeVar("C")

LARGEST = 2**63 - 1
"""The largest whole number of an option; counts in torch have 64 bits."""


@attrs.frozen
class _Problem:
    """One invalid value: its path, the value, what is allowed, the meaning of the option; whether its type is wrong.

    An unknown option has the class in whose place it stands as `section`, and its name as `allowed`.
    """

    path: str
    value: Any
    allowed: str
    meaning: str | None = None
    is_of_type: bool = False
    section: type | None = None

    def under(self, step: str, meaning: str | None = None) -> _Problem:
        """Return the problem with `step` prepended to its path; the meaning of the innermost option is kept."""
        return attrs.evolve(self, path=step + self.path, meaning=meaning if self.meaning is None else self.meaning)

    def line(self, where: str, path: str) -> str:
        """Return the error message, one line, without the value of a secret option."""
        full = (path + self.path).removeprefix(".")
        is_shown = self.value is not attrs.NOTHING and not any(map(is_secret, re.split(r"[.\[\]]", full)))
        value = f" = {show(self.value)}" if is_shown else ""
        subject = f"{full}{value}: " if full else f"{show(self.value)}: "
        allowed = self.allowed
        if self.section is not None:
            place, known = full.removesuffix(self.allowed), fields(self.section)
            paths = [row.path for row in describe(self.section) if row.path not in known]
            below = [place + path for path in paths if path.rpartition(".")[2] == self.allowed]
            allowed = unknown_name(self.allowed, list(known), below=below)
        return f"{where + ': ' if where else ''}{subject}{allowed}{f' ({self.meaning})' if self.meaning else ''}"


class _Invalid(Exception):
    """Invalid values; `rest` is an object of the valid options and the defaults of the others, if there is one."""

    def __init__(self, problems: Sequence[_Problem], rest: object = None) -> None:
        super().__init__(problems)
        self.problems, self.rest = problems, rest


def structure(cls: type[C], values: Mapping[str, object] | C, *, where: str = "", path: str = "") -> C:
    """Build a config object of `cls` from plain values.

    The only conversions are from whole numbers to floats and from lists to tuples. A mapping for a section replaces the
    options it names and keeps the section's defaults for the others. Config objects are returned unchanged.

    Args:
        cls: a `@config` class.
        values: options by name.
        where: file or other source, with which error messages begin.
        path: dotted path of `values` in that source.

    Raises:
        ConfigError: one line for each option that is unknown, of the wrong type or out of range.
    """
    structured, error = structure_valid(cls, values, where=where, path=path)
    if error is not None:
        raise error
    return cast("C", structured)


def structure_valid(
    cls: type[C], values: Mapping[str, object] | C, *, where: str = "", path: str = ""
) -> tuple[C | None, ConfigError | None]:
    """Build a config object from the valid options and the defaults of the others, for further checks.

    Returns:
        The object, None if an option without a default is invalid; and the error of `structure`, None if there is none.
    """
    try:
        return cast("C", _structure_class(values, cls)), None
    except _Invalid as invalid:
        lines = "\n".join(problem.line(where, path) for problem in invalid.problems)
        return cast("C | None", invalid.rest), ConfigError(lines)


def _structure_class(values: object, cls: type, base: object = None) -> object:
    """Build `cls` from `values`, with missing options from `base` or the defaults."""
    if isinstance(values, cls):
        return values
    if not isinstance(values, Mapping):
        raise _Invalid([_Problem("", values, f"must be {phrase(cls)}")])
    chosen, problems = _structure_fields(values, cls, base)
    for name, (field, _) in fields(cls).items():
        if name not in values and base is not None:
            chosen[name] = getattr(base, field.name)
        elif name not in values and field.default is attrs.NOTHING:
            problems.append(_Problem(f".{name}", attrs.NOTHING, "must be given", field.metadata.get("help", "")))
    try:
        built = cls(**chosen)
    except (TypeError, ValueError) as error:
        if problems:  # a required option is missing, or the defaults of invalid ones do not fit the others
            raise _Invalid(problems) from None
        if not isinstance(error, ValueError):
            raise
        raise _Invalid([_Problem("", values, str(error))]) from error  # a class may check options against each other
    if problems:
        raise _Invalid(problems, built)
    return built


def _structure_fields(
    values: Mapping[str, object], cls: type, base: object
) -> tuple[dict[str, object], list[_Problem]]:
    known, problems, chosen = fields(cls), list[_Problem](), dict[str, Any]()
    for name, value in values.items():
        if name not in known:
            problems.append(_Problem(f".{name}", attrs.NOTHING, str(name), "", section=cls))
            continue
        field, tp = known[name]
        try:
            chosen[name] = _structure_field(value, field, tp, cls, base)
        except _Invalid as invalid:
            problems += [problem.under(f".{name}", field.metadata.get("help", "")) for problem in invalid.problems]
            if invalid.rest is not None:
                chosen[name] = invalid.rest
    return chosen, problems


def _structure_field(value: Any, field: attrs.Attribute[Any], tp: Any, cls: type, base: object) -> object:
    _structure_anything(value, Any)
    section = section_class(tp)
    empty = value is None and type(None) not in arms(tp)  # a section heading in YAML without content
    if section and (empty or isinstance(value, Mapping)):
        default = default_of(field, cls) if base is None else getattr(base, field.name)
        base = default if isinstance(default, section) else None
        return _structure_class({} if empty else value, section if base is None else type(base), base)
    structured = _converter.structure(value, tp)
    error = range_error(structured, field.metadata)
    if error:
        raise _Invalid([_Problem("", value, error)])
    return structured


def _structure_union(value: Any, tp: object) -> object:
    nested: list[_Problem] = []
    for arm in sorted(arms(tp), key=lambda arm: arm is float):  # float last, so that an int remains an int
        try:
            return _converter.structure(value, arm)
        except _Invalid as invalid:
            nested += [problem for problem in invalid.problems if problem.path or not problem.is_of_type]
    raise _Invalid(nested or [_type_problem(value, tp)])


def _structure_list(value: object, tp: object) -> object:
    origin, args = typing.get_origin(tp) or tp, typing.get_args(tp)
    if not isinstance(value, list | tuple):
        raise _Invalid([_type_problem(value, tp)])
    fixed = origin is tuple and bool(args) and args[-1] is not Ellipsis
    if fixed and len(value) != len(args):
        raise _Invalid([_type_problem(value, tp)])
    inner = args if fixed else (args[0] if args else Any,) * len(value)
    parts = _each(((f"[{i}]", part, arm) for i, (part, arm) in enumerate(zip(value, inner, strict=True))))
    return list(parts) if origin is list else parts


def _structure_mapping(value: object, tp: object) -> dict[Any, object]:
    if not isinstance(value, Mapping):
        raise _Invalid([_type_problem(value, tp)])
    of_key, of_value = typing.get_args(tp) or (Any, Any)
    keys = _each((f".{key}", key, of_key) for key in value)
    return dict(zip(keys, _each((f".{key}", part, of_value) for key, part in value.items()), strict=True))


def _each(parts: typing.Iterable[tuple[str, Any, Any]]) -> tuple[object, ...]:
    structured, problems = [], list[_Problem]()
    for step, value, tp in parts:
        try:
            structured.append(_converter.structure(value, tp))
        except _Invalid as invalid:
            problems += [problem.under(step) for problem in invalid.problems]
    if problems:
        raise _Invalid(problems)
    return tuple(structured)


def _structure_scalar(value: Any, tp: Any) -> object:
    accepted: Any = {int: numbers.Integral, float: numbers.Real, str: str | os.PathLike}.get(tp, tp)
    is_bool = tp in {int, float} and isinstance(value, bool)  # which Python counts among the numbers
    if is_bool or not isinstance(value, accepted):
        raise _Invalid([_type_problem(value, tp)])
    convert: dict[Any, Callable[[Any], Any]] = {int: _whole, float: float, str: os.fspath}
    try:
        structured = convert[tp](value) if tp in convert else value
    except OverflowError:
        raise _Invalid([_Problem("", value, f"must be {phrase(tp)} of at most 64 bits")]) from None
    if tp is float and math.isnan(structured):
        raise _Invalid([_type_problem(value, tp)])
    return structured


def _whole(value: Any) -> int:
    if abs(value) > LARGEST:
        raise OverflowError
    return int(value)


def _structure_literal(value: object, tp: object) -> object:
    for choice in typing.get_args(tp):
        if type(choice) is type(value) and choice == value:
            return choice
    raise _Invalid([_type_problem(value, tp)])


def _structure_anything(value: object, _: object) -> object:
    if isinstance(value, str) and HIDDEN in value:
        raise _Invalid([_Problem("", value, "stands for a secret, which no file of a run contains: set the option")])
    return value


def _type_problem(value: object, tp: object) -> _Problem:
    choices = [arg for arm in arms(tp) for arg in typing.get_args(arm) if isinstance(arg, str)]
    near = difflib.get_close_matches(value, choices, n=1) if isinstance(value, str) else []
    allowed = f"must be {phrase(tp)}" + (f"; did you mean '{near[0]}'?" if near else "")
    return _Problem("", value, allowed, is_of_type=True)


def _is_literal(tp: object) -> bool:
    origin: object = typing.get_origin(tp)
    return origin is Literal


def _is_anything(tp: object) -> bool:
    return tp is Any or tp is object


def _make_converter() -> Converter:
    """Return a cattrs converter that converts nothing implicitly; hooks registered later take precedence."""
    converter = Converter()
    converter.register_structure_hook_func(lambda tp: isinstance(tp, type), _structure_scalar)
    for scalar in (int, float, bool, str, type(None)):
        converter.register_structure_hook(scalar, _structure_scalar)
    converter.register_structure_hook_func(lambda tp: isinstance(tp, type) and attrs.has(tp), _structure_class)
    converter.register_structure_hook_func(is_list, _structure_list)
    converter.register_structure_hook_func(is_mapping, _structure_mapping)
    converter.register_structure_hook_func(_is_literal, _structure_literal)
    converter.register_structure_hook_func(lambda tp: len(arms(tp)) > 1, _structure_union)
    converter.register_structure_hook_func(_is_anything, _structure_anything)
    return converter


_converter = _make_converter()
