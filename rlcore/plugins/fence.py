"""Keep what plugins raise out of a run: whoever raises is left out of it, said once, and listed when it ends."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pluggy

from rlcore.components import Dropped, describe_error
from rlcore.errors import PluginError
from rlcore.logging import get_logger
from rlcore.plugins.switches import is_on

_log = get_logger("rlcore")


class Fence:
    """Remember who was left out of one run, for whoever sums the run up."""

    def __init__(self) -> None:
        self.dropped: list[Dropped] = []
        self._num_reported = 0

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

    def take_unreported(self) -> list[Dropped]:
        """Return those that no closing summary has listed yet, and count them as listed."""
        left, self._num_reported = self.dropped[self._num_reported :], len(self.dropped)
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
