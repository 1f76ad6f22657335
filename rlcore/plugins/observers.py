"""Calls of the observer hooks of a run; an observer that raises is disabled and does not affect the run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pluggy

from rlcore.plugins.fence import Fence, one_by_one
from rlcore.plugins.observer_objects import HOOKS, find_hook
from rlcore.plugins.registry import registries
from rlcore.profiling import phase

if TYPE_CHECKING:
    from rlcore.protocols import RunView
    from rlcore.types import Trajectories


class Observers:
    """The observers of one run; one that raises is logged once and not called again.

    Observers receive copies of metrics, so that they cannot change those of the run.

    Args:
        hooks: hooks of the plugins; those of this process if omitted.
        fence: records which observers were disabled.
        idle: dists whose observers are not called, because the run does not use them.
        own: observers that the user passed as objects, by the name that messages use; called after the plugins.

    Raises:
        PluginError: from every method, if RLCORE_STRICT_PLUGINS is set and an observer raises.
    """

    def __init__(
        self,
        hooks: pluggy.PluginManager | None = None,
        *,
        fence: Fence | None = None,
        idle: Collection[str] = (),
        own: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        hooks = registries().discovery.hooks if hooks is None else hooks
        self.fence = fence or Fence()
        # The plugin that was registered last is called first, as in pluggy.
        self._observers: dict[str, list[tuple[str, Callable[..., Any]]]] = {
            hook: [each for each in one_by_one(hooks, hook)[::-1] if each[0].partition(":")[0] not in idle]
            for hook in HOOKS
        }
        for hook, calls in self._observers.items():
            calls += [(name, call) for name, each in own.items() if (call := find_hook(each, hook)) is not None]
        self._own = frozenset(own)

    @property
    def plugins(self) -> set[str]:
        """The plugins that implement an observer hook, as `dist:entry-point`."""
        return {plugin for observers in self._observers.values() for plugin, _ in observers} - self._own

    def on_run_start(self, run: RunView) -> None:
        """Call the hook when the run begins."""
        self._call_all("on_run_start", run=run)

    def on_rollout(self, run: RunView, batch: Trajectories) -> None:
        """Call the hook after trajectories are sampled and rewarded."""
        self._call_all("on_rollout", run=run, batch=batch)

    def on_step(self, run: RunView, metrics: Mapping[str, float]) -> None:
        """Call the hook after a step."""
        self._call_all("on_step", run=run, metrics=dict(metrics))

    def on_evaluate(self, run: RunView, metrics: Mapping[str, float]) -> None:
        """Call the hook after an evaluation."""
        self._call_all("on_evaluate", run=run, metrics=dict(metrics))

    def on_checkpoint(self, run: RunView, path: Path) -> None:
        """Call the hook after a checkpoint is complete on disk."""
        self._call_all("on_checkpoint", run=run, path=path)

    def on_export(self, run: RunView, folder: Path) -> None:
        """Call the hook after the trained model is written to a folder."""
        self._call_all("on_export", run=run, folder=folder)

    def on_run_end(self, run: RunView, error: BaseException | None) -> None:
        """Call the hook of every observer at the end of the run, even if one of them raises."""
        self._call_each("on_run_end", run=run, error=error)

    def on_run_closed(self, run: RunView, error: BaseException | None) -> None:
        """Call the hook of every observer when the run's files are complete, even if one of them raises."""
        self._call_each("on_run_closed", run=run, error=error)

    def _call_each(self, hook: str, **arguments: Any) -> None:
        with ExitStack() as calls:  # makes the calls in reverse order, and raises after the last
            for plugin, call in reversed(self._observers[hook]):
                calls.callback(self._call, plugin, call, hook, **arguments)

    def _call_all(self, hook: str, **arguments: Any) -> None:
        for plugin, call in list(self._observers[hook]):
            self._call(plugin, call, hook, **arguments)

    def _call(self, plugin: str, call: Callable[..., Any], hook: str, **arguments: Any) -> None:
        try:
            with phase("hooks"), phase(plugin):
                call(**arguments)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # the fence: an observer may raise anything
            run = arguments["run"]
            self.fence.drop(plugin, hook, 0 if run is None else run.step, error, event="observer_dropped")
            self._disable(plugin)

    def _disable(self, plugin: str) -> None:
        for observers in self._observers.values():
            observers[:] = [observer for observer in observers if observer[0] != plugin]
