"""Keep what plugins raise out of a run: whoever raises is left out of it, said once, and listed when it ends."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import attrs
import pluggy

from rlcore.components import describe_error
from rlcore.errors import PluginError
from rlcore.logging import get_logger
from rlcore.plugins.switches import is_on

__all__ = ["Dropped"]  # the rest is for the core

_log = get_logger("rlcore")


@attrs.frozen
class Dropped:
    """Say what of a plugin was left out of a run after it raised.

    Attributes:
        plugin: `dist:entry-point` of an observer or wrapper, `dist:name` of a logger.
        what: the hook or method that raised.
        step: steps done by then.
        error: what it raised, in one line.
    """

    plugin: str
    what: str
    step: int
    error: str

    def __str__(self) -> str:
        return f"{self.plugin}  {self.what} at step {self.step}: {self.error}"


class Fence:
    """Remember who was left out of one run, for whoever sums the run up."""

    def __init__(self) -> None:
        self.dropped: list[Dropped] = []
        self._num_told = 0

    def drop(self, plugin: str, what: str, step: int, error: BaseException, *, event: str) -> None:
        """Note and log that a part of a plugin is left out for the rest of the run; `event` is what the log says.

        Raises:
            PluginError: instead, where RLCORE_STRICT_PLUGINS is set.
        """
        said = describe_error(error)
        if is_on(os.environ, "RLCORE_STRICT_PLUGINS"):
            raise PluginError(f"{plugin}: {what} raised {said}") from error
        self.dropped.append(Dropped(plugin, what, step, said))
        _log.error(event, plugin=plugin, during=what, error=said, exc_info=error)

    def untold(self) -> list[Dropped]:
        """Return those that no summary has listed yet; the caller is about to."""
        left, self._num_told = self.dropped[self._num_told :], len(self.dropped)
        return left


def one_by_one(hooks: pluggy.PluginManager, hook: str) -> list[tuple[str, Callable[..., list[Any]]]]:
    """Return a caller of `hook` for each plugin that implements it, with the plugin's name, in registration order."""
    everyone = list(hooks.get_plugins())
    implementers = [each.plugin for each in getattr(hooks.hook, hook).get_hookimpls()]
    return [
        (
            hooks.get_name(own) or repr(own),
            hooks.subset_hook_caller(hook, [other for other in everyone if other is not own]),
        )
        for own in implementers
    ]
