"""What a law is: a name that says it, whom it holds for, and a function that raises where it is broken."""

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

DIST = "plugin"
"""The kind of a law about a dist as a whole."""
EVERY = "component"
"""The kind of a law about every component, whatever registry it is in."""


class LawBroken(RLCoreError, AssertionError):
    """Report that a component does not keep a law: what was expected, what was seen, and what to do."""


class ConformanceError(RLCoreError, AssertionError):
    """Report a plugin that does not conform, or that cannot be checked at all."""


@attrs.frozen(eq=False)
class Subject:
    """Hold whom a law is held against.

    Attributes:
        dist: name of the dist under test.
        plugins: what became of each of its entry points.
        component: the component under test, None for a law about the dist.
        options: what the component is built with, as a user would write it; the rest are its defaults.
    """

    dist: str
    plugins: tuple[Plugin, ...]
    component: Component[Any] | None = None
    options: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def it(self) -> Component[Any]:
        """Return the component under test."""
        if self.component is None:
            raise ConformanceError(f"{self.dist}: this law is about a component, and was asked of the whole dist")
        return self.component

    def config(self, **changes: Any) -> Any:
        """Return the component's options, `changes` laid over the given ones; None where it has none."""
        cls = self.it.config_class()
        if cls is None:
            return None
        return structure(cls, {**self.options, **changes}, where=f"options of {self.it.qualified}")


@attrs.frozen(eq=False)
class Law:
    """Hold one law.

    Attributes:
        name: says the law, as `same_seed_same_numbers` does.
        kind: a registry (`trainers`), EVERY component, or DIST.
        hold: raises where the subject breaks the law.
        when: tells whether a subject declares what the law is about; its docstring says what that is.
    """

    name: str
    kind: str
    hold: Callable[[Subject], None]
    when: Callable[[Subject], bool]

    @property
    def text(self) -> str:
        """Return what the law says, in a sentence or two."""
        return " ".join((self.hold.__doc__ or "").split())

    @property
    def about(self) -> str:
        """Return whom it is held against, such as `always` or `where there are options`."""
        condition = " ".join((self.when.__doc__ or "").split()).partition(". ")[0].rstrip(".")
        return condition.replace("Tell whether always", "always").replace("Tell whether", "where")

    def __call__(self, subject: Subject) -> None:
        """Hold the law against `subject`.

        Raises:
            LawBroken: it is broken; anything the component raises itself passes through.
        """
        self.hold(subject)


def is_not_the_core(subject: Subject) -> bool:
    """Tell whether the package is another than rlcore itself."""
    return subject.dist != CORE


def _always(_: Subject) -> bool:
    """Tell whether always."""
    return True


def law(kind: str, *, when: Callable[[Subject], bool] = _always) -> Callable[[Callable[[Subject], None]], Law]:
    """Make a law of a function whose name and docstring say it."""

    def make(hold: Callable[[Subject], None]) -> Law:
        return Law(name=hold.__name__, kind=kind, hold=hold, when=when)

    return make


def require(held: bool, otherwise: str) -> None:
    """Go on where a law is kept.

    Raises:
        LawBroken: it is not; `otherwise` says what was expected, what was seen, and what to do.
    """
    if not held:
        raise LawBroken(otherwise)


def laws_in(module: ModuleType) -> list[Law]:
    """List the laws that a module defines, in their order."""
    return [each for each in vars(module).values() if isinstance(each, Law)]
