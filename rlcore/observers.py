"""Tell every plugin what happens in a run, and let none of them disturb it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from rlcore.components import describe_error
from rlcore.errors import PluginError
from rlcore.log import get_logger
from rlcore.registry import registries
from rlcore.switches import is_on

if TYPE_CHECKING:
    from rlcore.types import Trajectories

_log = get_logger("rlcore")


class Observers:
    """Call the observer hooks of every plugin for one run; one that raises is logged once and heard no more.

    Raises:
        PluginError: from every method, where RLCORE_STRICT_PLUGINS is set and an observer raises.
    """

    def __init__(self, hooks: pluggy.PluginManager | None = None) -> None:
        self._hooks = registries().discovery.hooks if hooks is None else hooks
        self._dropped: list[Any] = []

    def on_run_start(self, run: Any) -> None:
        """Tell that the run begins."""
        self._tell("on_run_start", run=run)

    def on_rollout(self, run: Any, batch: Trajectories) -> None:
        """Tell of trajectories just sampled and rewarded."""
        self._tell("on_rollout", run=run, batch=batch)

    def on_step(self, run: Any, metrics: Mapping[str, float]) -> None:
        """Tell of the metrics of a step."""
        self._tell("on_step", run=run, metrics=metrics)

    def on_evaluate(self, run: Any, metrics: Mapping[str, float]) -> None:
        """Tell of the metrics of an evaluation."""
        self._tell("on_evaluate", run=run, metrics=metrics)

    def on_checkpoint(self, run: Any, path: Path) -> None:
        """Tell of a checkpoint that is whole and on disk."""
        self._tell("on_checkpoint", run=run, path=path)

    def on_run_end(self, run: Any, error: BaseException | None) -> None:
        """Tell that the run is over."""
        self._tell("on_run_end", run=run, error=error)

    def _tell(self, hook: str, **arguments: Any) -> None:
        everyone = list(self._hooks.get_plugins())
        listeners = [each.plugin for each in reversed(getattr(self._hooks.hook, hook).get_hookimpls())]
        for listener in listeners:
            if any(listener is dropped for dropped in self._dropped):
                continue
            call = self._hooks.subset_hook_caller(hook, [other for other in everyone if other is not listener])
            try:
                call(**arguments)
            except (Exception, SystemExit) as error:  # noqa: BLE001  # the fence: an observer may raise anything
                self._drop(listener, hook, error)

    def _drop(self, listener: Any, hook: str, error: BaseException) -> None:
        name = self._hooks.get_name(listener) or repr(listener)
        if is_on(os.environ, "RLCORE_STRICT_PLUGINS"):
            raise PluginError(f"{name}: {hook} raised {describe_error(error)}") from error
        self._dropped.append(listener)
        _log.error("observer_dropped", plugin=name, hook=hook, error=describe_error(error), exc_info=error)
