"""What adapters to libraries of environments share: rows that are seeds, and functions of the user."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from rlcore.data.user_code import load_reference
from rlcore.errors import ConfigError
from rlcore.protocols import Environment
from rlcore_environments.options import SeedOptions

WHERE = "data.environment"


class SeedFactory:
    """A factory of episodes that differ by their seeds (`rlcore.protocols.EnvironmentFactory`).

    Args:
        config: the options of the environment, with those of `SeedOptions`.

    Attributes:
        episode: the class of its environments, which receive the factory.
    """

    episode: ClassVar[type[Any]]

    def __init__(self, config: Any) -> None:
        self.config = config

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.config,)

    def make(self) -> Environment:
        """Return the environment of one episode."""
        made: Environment = self.episode(self)
        return made

    def rows(self, split: str) -> list[dict[str, Any]] | None:
        """Return the rows of a split; None if there are none."""
        return [{"seed": seed} for seed in seeds_of(split, self.config)] or None


def seeds_of(split: str, options: SeedOptions) -> range:
    """Return the seeds of a split, one after another: first those of `eval`, then those of `train`."""
    first = options.seed + options.eval_rows
    return range(options.seed, first) if split == "eval" else range(first, first + options.train_rows)


def function_of(given: Any, what: str) -> Callable[..., Any] | None:
    """Return a function that is given itself or as `module:function`.

    Args:
        given: the function, its name, or None.
        what: the option, for messages.

    Raises:
        ConfigError: it is none of these.
        DataError: the module or the function does not exist.
    """
    found = load_reference(given, what) if isinstance(given, str) else given
    if found is not None and not callable(found):
        raise ConfigError(f"{what} = {given!r:.80}: must be a function, or `module:function`")
    return found  # type: ignore[no-any-return]


def near_names(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name, with the names that are spelled like it."""
    near = difflib.get_close_matches(name, list(known), n=3)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
