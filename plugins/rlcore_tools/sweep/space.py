"""The search space: which values each swept option may have.

uniform(low, high)         real numbers; every interval of one length is equally likely
loguniform(low, high)      positive real numbers, whose logarithms are uniform
quniform(low, high, step)  low, low + step, ..., high
int(low, high)             whole numbers from low to high, both included; int(low, high, step)
logint(low, high)          positive whole numbers, uniform on a logarithmic scale
choice(a, b, ...)          one of these values; the list [a, b, ...] means the same
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import attrs

from rlcore.config import parse_overrides
from rlcore.errors import ConfigError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

SIGNATURES = {
    "uniform": "uniform(low, high)",
    "loguniform": "loguniform(low, high)",
    "quniform": "quniform(low, high, step)",
    "int": "int(low, high)",
    "logint": "logint(low, high)",
    "choice": "choice(a, b, ...)",
}
ELSEWHERE = {
    "randint": "int(low, high), whose upper bound is included",
    "qrandint": "int(low, high, step)",
    "lograndint": "logint(low, high), whose upper bound is included",
    "grid": "a list of values, with --sampler grid",
    "grid_search": "a list of values, with --sampler grid",
    "categorical": "choice(a, b, ...), or a list of values",
}
"""Distributions of other libraries, and what to write instead."""
WHOLE = ("int", "logint")
REAL = ("uniform", "loguniform", "quniform")
MOST_STEPS = 2**53
"""Steps that floating-point numbers can still count."""
LOGARITHMIC = ("loguniform", "logint")
MAX_GRID = 10_000
"""Values of one option in a grid."""
_CALL = re.compile(r"\s*([A-Za-z_]\w*)\s*\((.*)\)\s*", re.DOTALL)
_BEGUN = re.compile(rf"\s*(?:{'|'.join(SIGNATURES)})\s*\(")
_DIGITS = 12
"""Significant digits of a multiple of `step`, so that 0.1 + 2 * 0.1 is 0.3."""


@attrs.frozen
class Dimension:
    """One swept option.

    Attributes:
        path: dotted path of the option.
        kind: name of the distribution.
        low, high: the bounds, both included; 0 for a choice.
        step: distance between neighbouring values; None if every number between the bounds is allowed.
        choices: the values of a choice.
    """

    path: str
    kind: str
    low: float = 0
    high: float = 0
    step: float | None = None
    choices: tuple[object, ...] = ()

    @property
    def text(self) -> Any:
        """Return the distribution as a sweep's section contains it."""
        if self.kind == "choice":
            return list(self.choices)
        numbers = [self.low, self.high, *([] if self.step is None or self.kind in LOGARITHMIC else [self.step])]
        if self.kind == "int" and self.step == 1:
            numbers.pop()
        return f"{self.kind}({', '.join(map(repr, numbers))})"

    @property
    def is_logarithmic(self) -> bool:
        """Whether the option has a logarithmic scale."""
        return self.kind in LOGARITHMIC

    @property
    def labels(self) -> tuple[Any, ...]:
        """Return what stands for each choice in the study, which stores numbers, texts, truth values and null."""
        return tuple(map(label_of, self.choices))

    def distribution(self) -> BaseDistribution:
        """Return the distribution as Optuna has it."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.kind == "choice":
            return CategoricalDistribution(self.labels)
        if self.kind in WHOLE:
            return IntDistribution(int(self.low), int(self.high), log=self.kind == "logint", step=int(self.step or 1))
        return FloatDistribution(self.low, self.high, log=self.kind == "loguniform", step=self.step)

    def value(self, parameter: Any) -> Any:
        """Return the option's value for a parameter of the study."""
        if self.kind == "choice":
            return self.choices[self.labels.index(parameter)]
        if self.kind in WHOLE:
            return int(parameter)
        return float(f"{parameter:.{_DIGITS}g}") if self.kind == "quniform" else float(parameter)

    @property
    def probes(self) -> tuple[Any, ...]:
        """Return values that show whether the option accepts the space: every choice, or the bounds and a number."""
        if self.kind == "choice":
            return self.choices
        inner = self.low + (self.high - self.low) * 0.382
        if self.step is not None:
            inner = self.low + self.step * round((inner - self.low) / self.step)
        return tuple(map(self.value, (self.low, self.high, inner)))

    def grid(self) -> list[Any]:
        """Return all parameters of the option, in order.

        Raises:
            ConfigError: the option has infinitely many values, or very many.
        """
        if self.kind == "choice":
            return list(self.labels)
        count = 0 if self.step is None else 1 + round((self.high - self.low) / self.step)
        if self.kind in ("uniform", "loguniform") or count > MAX_GRID:
            raise ConfigError(
                f"{self.path}: a grid needs a list of values, int(low, high) or quniform(low, high, step), of at most "
                f"{MAX_GRID} values; it is {self.text}"
            )
        return [self.value(self.low + i * float(self.step or 1)) for i in range(count)]


def label_of(value: object) -> object:
    """Return what stands for a value in a study: itself, or its JSON text if it is a list or a mapping."""
    return value if value is None or isinstance(value, bool | int | float | str) else json.dumps(value, sort_keys=True)


def read_words(words: Sequence[str]) -> dict[str, object]:
    """Return the entries of arguments such as `trainer.clip=uniform(0.1, 0.3)`; later ones win.

    Raises:
        ConfigError: one line for each argument that cannot be read.
    """
    texts = {word.partition("=")[0].strip(): word for word in words}
    calls = {path: word.partition("=")[2] for path, word in texts.items() if _CALL.fullmatch(word.partition("=")[2])}
    parse_overrides([word for path, word in texts.items() if path not in calls])  # raises all errors at once
    return {path: calls[path] if path in calls else _at(parse_overrides([word]), path) for path, word in texts.items()}


def _at(nested: Any, path: str) -> Any:
    for step in path.split("."):
        nested = nested[step.strip() if step.strip() in nested else step]
    return nested


def read_space(entries: Mapping[str, object]) -> tuple[list[Dimension], dict[str, Any]]:
    """Return the swept options of a space, and the values of those that all trials share.

    Args:
        entries: dotted path → text of a distribution, list of values, or one value.

    Raises:
        ConfigError: one line for each distribution that is unknown or has wrong bounds.
    """
    dimensions, shared, errors = list[Dimension](), dict[str, Any](), list[str]()
    for path, entry in entries.items():
        try:
            found = _read(str(path), entry)
        except ConfigError as error:
            errors.append(str(error))
            continue
        if found is None:
            shared[str(path)] = entry
        else:
            dimensions.append(found)
    if errors:
        raise ConfigError("\n".join(errors))
    return dimensions, shared


def _read(path: str, entry: Any) -> Dimension | None:
    if isinstance(entry, list):
        return _choice(path, entry)
    call = _CALL.fullmatch(entry) if isinstance(entry, str) else None
    if call is None and isinstance(entry, str) and _BEGUN.match(entry):
        raise ConfigError(f"{path} = {entry}: the closing parenthesis is missing")
    if call is None:
        return None
    kind, inner = call[1], call[2]
    if kind not in SIGNATURES:
        near = difflib.get_close_matches(kind, SIGNATURES, n=1)
        use = ELSEWHERE.get(kind) or (f"did you mean {SIGNATURES[near[0]]}?" if near else "")
        raise ConfigError(f"{path} = {entry}: no such distribution; {use or ', '.join(SIGNATURES.values())}")
    given = _at(parse_overrides([f"{path}=[{inner}]"]), path)
    return _choice(path, given) if kind == "choice" else _numbers(path, kind, given, f"{path} = {entry.strip()}")


def _choice(path: str, values: list[Any]) -> Dimension:
    if not values:
        raise ConfigError(f"{path} = []: needs at least one value to choose from")
    labels = [label_of(value) for value in values]
    twice = next((label for i, label in enumerate(labels) if label in labels[:i]), None)
    if twice is not None or labels.count(None) > 1:
        raise ConfigError(f"{path} = {values}: has {twice!r} twice; list every value once")
    return Dimension(path, "choice", choices=tuple(values))


def _numbers(path: str, kind: str, given: list[Any], where: str) -> Dimension:
    counts = {"int": (2, 3), "quniform": (3,)}.get(kind, (2,))
    what = "whole numbers" if kind in WHOLE else "numbers"
    if len(given) not in counts:
        raise ConfigError(f"{where}: needs {' or '.join(map(str, counts))} {what}: {SIGNATURES[kind]}")
    for number in given:
        fits = isinstance(number, int) if kind in WHOLE else isinstance(number, int | float)
        if isinstance(number, bool) or not fits or not math.isfinite(number):
            raise ConfigError(f"{where}: {number!r} is not a {'whole' if kind in WHOLE else 'finite'} number")
    low, high, *rest = given if kind in WHOLE else map(float, given)
    if low >= high:
        raise ConfigError(f"{where}: the lower bound {low} must be below the upper bound {high}")
    if kind in LOGARITHMIC and low <= 0:
        raise ConfigError(f"{where}: the lower bound {low} must be above 0, because the scale is logarithmic")
    step = rest[0] if rest else 1 if kind in WHOLE else None
    if rest:
        _check_step(where, low, high, rest[0])
    return Dimension(path, kind, low, high, step)


def _check_step(where: str, low: float, high: float, step: float) -> None:
    if step <= 0:
        raise ConfigError(f"{where}: the step {step} must be above 0")
    if high - low > MOST_STEPS * step:
        raise ConfigError(f"{where}: there are more than 2**53 steps between the bounds; choose a larger step")
    first, last, each = (Decimal(repr(number)) for number in (low, high, step))
    if (last - first) % each:
        fitting = first + (last - first) // each * each
        instead = f", such as {fitting.normalize():f}" if fitting > first else ""
        raise ConfigError(f"{where}: the upper bound must be a whole number of steps above the lower bound{instead}")


def show_value(value: object) -> str:
    """Return a value of an option for a line or a table: numbers with at most six digits."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
