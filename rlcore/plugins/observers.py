"""Tell every plugin what happens in a run, and let none of them disturb it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from rlcore.plugins.fence import Fence, one_by_one
from rlcore.plugins.registry import registries
from rlcore.profiling import phase

if TYPE_CHECKING:
    from rlcore.protocols import RunView
    from rlcore.types import Trajectories

HOOKS = ("on_run_start", "on_rollout", "on_step", "on_evaluate", "on_checkpoint", "on_run_end")


class Observers:
    """Call the observer hooks of every plugin for one run; one that raises is logged once and heard no more.

    Metrics are given as a copy: those of the run, by which it is judged, are no observer's to change.

    Args:
        hooks: those of the plugins of this process when left out.
        fence: keeps a list of who was dropped.
        idle: dists whose observers the run has no use for; they are neither called nor listed.

    Raises:
        PluginError: from every method, where RLCORE_STRICT_PLUGINS is set and an observer raises.
    """

    def __init__(
        self,
        hooks: pluggy.PluginManager | None = None,
        *,
        fence: Fence | None = None,
        idle: Collection[str] = (),
    ) -> None:
        hooks = registries().discovery.hooks if hooks is None else hooks
        self.fence = fence or Fence()
        # Those that registered last hear first, as in pluggy.
        self._listeners: dict[str, list[tuple[str, Callable[..., Any]]]] = {
            hook: [each for each in one_by_one(hooks, hook)[::-1] if each[0].partition(":")[0] not in idle]
            for hook in HOOKS
        }

    @property
    def plugins(self) -> set[str]:
        """Name the plugins that listen to anything, as `dist:entry-point`."""
        return {plugin for listeners in self._listeners.values() for plugin, _ in listeners}

    def on_run_start(self, run: RunView) -> None:
        """Tell that the run begins."""
        self._tell("on_run_start", run=run)

    def on_rollout(self, run: RunView, batch: Trajectories) -> None:
        """Tell of trajectories just sampled and rewarded."""
        self._tell("on_rollout", run=run, batch=batch)

    def on_step(self, run: RunView, metrics: Mapping[str, float]) -> None:
        """Tell of the metrics of a step."""
        self._tell("on_step", run=run, metrics=dict(metrics))

    def on_evaluate(self, run: RunView, metrics: Mapping[str, float]) -> None:
        """Tell of the metrics of an evaluation."""
        self._tell("on_evaluate", run=run, metrics=dict(metrics))

    def on_checkpoint(self, run: RunView, path: Path) -> None:
        """Tell of a checkpoint that is whole and on disk."""
        self._tell("on_checkpoint", run=run, path=path)

    def on_run_end(self, run: RunView, error: BaseException | None) -> None:
        """Tell every observer that the run is over, whatever the call of another one raises."""
        with ExitStack() as calls:  # which makes the calls in reverse, and raises only after the last
            for plugin, call in reversed(self._listeners["on_run_end"]):
                calls.callback(self._call, plugin, call, "on_run_end", run=run, error=error)

    def _tell(self, hook: str, **arguments: Any) -> None:
        for plugin, call in list(self._listeners[hook]):
            self._call(plugin, call, hook, **arguments)

    def _call(self, plugin: str, call: Callable[..., Any], hook: str, **arguments: Any) -> None:
        try:
            with phase("hooks"), phase(plugin):
                call(**arguments)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # the fence: an observer may raise anything
            run = arguments["run"]
            self.fence.drop(plugin, hook, 0 if run is None else run.step, error, event="observer_dropped")
            self._forget(plugin)

    def _forget(self, plugin: str) -> None:
        for listeners in self._listeners.values():
            listeners[:] = [each for each in listeners if each[0] != plugin]
