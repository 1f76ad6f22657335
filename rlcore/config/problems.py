"""Errors of a configuration, collected so that all sections are reported together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from rlcore.errors import ConfigError, RLCoreError

T = TypeVar("T")


class Problems:
    """Collects errors until `check`, which raises them; after that, errors are raised at once."""

    def __init__(self) -> None:
        self._errors: list[RLCoreError] = []
        self._is_checked = False

    def add(self, error: RLCoreError) -> None:
        """Collect an error."""
        if self._is_checked:
            raise error
        self._errors.append(error)

    def attempt(self, make: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Return what `make` returns. If it raises an error of rlcore, collect that and return None in its place.

        The None is only passed on to further attempts, because `check` raises.
        """
        try:
            return make(*arguments, **options)
        except RLCoreError as error:
            self.add(error)
            return cast("T", None)

    def check(self) -> None:
        """Raise the collected errors: a single one as it is, several as the lines of one ConfigError."""
        self._is_checked = True
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            lines = (
                f"{'' if type(each) is ConfigError else f'{type(each).__name__}: '}{each}" for each in self._errors
            )
            raise ConfigError("\n".join(lines)) from self._errors[0]
