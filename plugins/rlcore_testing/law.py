"""Laws of the conformance kit: a name, a condition for when the law applies, and a function that checks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import attrs

from rlcore.components import Component
from rlcore.config import structure
from rlcore.errors import RLCoreError
from rlcore.plugins.discovery import Plugin
from rlcore.plugins.metadata import CORE
from rlcore_testing.recorded import Oracle, Remote

DIST = "plugin"
"""Kind of the laws about a whole dist."""
EVERY = "component"
"""Kind of the laws about every component, independent of its registry."""
BASE = frozenset({CORE, "rlcore-shard", "rlcore-transformers"})
"""The core and the packages that the kit requires, whose components a law may use."""


class LawBroken(RLCoreError, AssertionError):
    """Raised when a component breaks a law; the message states the expectation, the observation and the remedy."""


class ConformanceError(RLCoreError, AssertionError):
    """Raised when a plugin does not conform, or when it cannot be checked."""


@attrs.frozen(eq=False)
class Subject:
    """The dist, and for most laws the component, that a law is checked against.

    Attributes:
        dist: name of the dist under test.
        plugins: discovery result for each of its entry points.
        component: component under test; None for a law about the dist.
        options: options the component is built with, in the form users write; other options keep their defaults.
        sections: sections of the configuration of runs, such as `{"model": {"dtype": "bfloat16"}}`.
        oracles: name of a trainer → its loss in plain torch.
        remotes: name of a sampler → what its workers do, and what can happen to them.
    """

    dist: str
    plugins: tuple[Plugin, ...]
    component: Component[Any] | None = None
    options: Mapping[str, Any] = attrs.field(factory=dict)
    sections: Mapping[str, Any] = attrs.field(factory=dict)
    oracles: Mapping[str, Oracle] = attrs.field(factory=dict)
    remotes: Mapping[str, Remote] = attrs.field(factory=dict)

    @property
    def it(self) -> Component[Any]:
        """Return the component under test."""
        if self.component is None:
            raise ConformanceError(f"{self.dist}: this law checks a component, but the subject is the whole dist")
        return self.component

    def config(self, **changes: object) -> Any:
        """Return the component's options with `changes` applied; None if the component has no options."""
        cls = self.it.config_class()
        if cls is None:
            return None
        return structure(cls, {**self.options, **changes}, where=f"options of {self.it.qualified}")


@attrs.frozen(eq=False)
class Law:
    """One law of the kit.

    Attributes:
        name: short statement of the law, such as `same_seed_same_numbers`.
        kind: a registry (`trainers`), EVERY, or DIST.
        hold: checks the law and raises if the subject breaks it; its docstring is the law's statement.
        when: returns whether the law applies to a subject; its docstring begins with "Return whether".
    """

    name: str
    kind: str
    hold: Callable[[Subject], None]
    when: Callable[[Subject], bool]

    @property
    def text(self) -> str:
        """Return the statement of the law: the docstring of `hold` on one line."""
        return " ".join((self.hold.__doc__ or "").split())

    @property
    def about(self) -> str:
        """Return the condition under which the law applies, such as `always` or `if it has options`."""
        condition = " ".join((self.when.__doc__ or "").split()).partition(". ")[0].rstrip(".")
        return condition.replace("Return whether always", "always").replace("Return whether", "if")

    def __call__(self, subject: Subject) -> None:
        """Check the law against `subject`.

        Raises:
            LawBroken: the law is broken. Exceptions of the component itself propagate unchanged.
        """
        self.hold(subject)


def is_not_the_core(subject: Subject) -> bool:
    """Return whether the package is not rlcore itself."""
    return subject.dist != CORE


def _always(_: Subject) -> bool:
    """Return whether always."""
    return True


def law(kind: str, *, when: Callable[[Subject], bool] = _always) -> Callable[[Callable[[Subject], None]], Law]:
    """Return a decorator that makes a `Law` of a function: its name and docstring become the law's name and text."""

    def make(hold: Callable[[Subject], None]) -> Law:
        return Law(name=hold.__name__, kind=kind, hold=hold, when=when)

    return make


def require(condition: bool, message: str) -> None:
    """Check a condition of a law.

    Raises:
        LawBroken: `condition` is False; `message` states the expectation, the observation and the remedy.
    """
    if not condition:
        raise LawBroken(message)


def laws_in(module: ModuleType) -> list[Law]:
    """Return the laws that a module defines, in the order of definition."""
    return [each for each in vars(module).values() if isinstance(each, Law)]
