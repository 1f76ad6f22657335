"""Isolation of a run from exceptions of plugins: a part that raises is logged once and disabled for the run."""

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
    """The parts of plugins that were disabled in one run, which closing summaries list."""

    def __init__(self) -> None:
        self.dropped: list[Dropped] = []
        self._num_reported = 0

    def drop(self, plugin: str, what: str, step: int, error: BaseException, *, event: str) -> None:
        """Record and log, as `event`, that a part of a plugin is disabled for the rest of the run.

        Raises:
            PluginError: instead, if RLCORE_STRICT_PLUGINS is set.
        """
        reason = describe_error(error)
        if is_on(os.environ, "RLCORE_STRICT_PLUGINS"):
            raise PluginError(f"{plugin}: {what} raised {reason}") from error
        self.dropped.append(Dropped(plugin, what, step, reason))
        _log.error(event, plugin=plugin, during=what, error=reason, exc_info=error)

    def take_unreported(self) -> list[Dropped]:
        """Return the entries that no closing summary has listed yet, and mark them as listed."""
        unreported, self._num_reported = self.dropped[self._num_reported :], len(self.dropped)
        return unreported


def one_by_one(hooks: pluggy.PluginManager, hook: str) -> list[tuple[str, Callable[..., list[Any]]]]:
    """Return, for each plugin that implements `hook`, its name and a function that calls it, in registration order."""
    everyone = list(hooks.get_plugins())
    implementers = [each.plugin for each in getattr(hooks.hook, hook).get_hookimpls()]
    return [
        (
            hooks.get_name(own) or repr(own),
            hooks.subset_hook_caller(hook, [other for other in everyone if other is not own]),
        )
        for own in implementers
    ]
