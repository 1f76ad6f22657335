"""Calls of the hooks of plugins, one plugin at a time: one that raises is named, and does not affect the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pluggy

from rlcore.components import Dropped, describe_error
from rlcore.errors import PluginError, RLCoreError
from rlcore.logging import get_logger
from rlcore.plugins.registry import all_registries
from rlcore.plugins.switches import is_on

_log = get_logger("rlcore")


class Fence:
    """The parts of plugins that were disabled in one run, which closing summaries list."""

    def __init__(self) -> None:
        self.dropped: list[Dropped] = []
        self._num_reported = 0

    @contextmanager
    def around(
        self, plugin: str, what: str, step: int, *, event: str, drop: Callable[[BaseException], object] | None = None
    ) -> Iterator[None]:
        """Let an error of the block disable a part of a plugin, but not end the run.

        Args:
            plugin: the name of the plugin.
            what: the hook or method that the block calls.
            step: number of the step.
            event: the message.
            drop: called with the error, to leave that part out of the rest of the run.

        Raises:
            PluginError: instead, if RLCORE_STRICT_PLUGINS is set.
        """
        try:
            yield
        except (Exception, SystemExit) as error:  # noqa: BLE001  a plugin may raise anything
            self.drop(plugin, what, step, error, event=event)
            if drop is not None:
                drop(error)

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


def first_result(hook: str, **arguments: Any) -> Any:
    """Return the first result other than None of a hook; None if there is none.

    Implementations are asked in the order of pluggy: those marked `tryfirst`, then the one registered last.

    Raises:
        RLCoreError: an implementation raised it; a PluginError, if it raised anything else.
    """
    for plugin, call in reversed(one_by_one(all_registries().discovery.hooks, hook)):
        try:
            results = call(**arguments)
        except RLCoreError:
            raise
        except Exception as error:
            raise PluginError(f"{plugin}: {hook} raised {describe_error(error)}") from error
        if results:
            return results[0]
    return None
