"""Calls of the observer hooks of a run; an observer that raises is disabled and does not affect the run.

A plain object is an observer too: a method with the name of an observer hook implements it, without a package.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pluggy

from rlcore import hookspecs
from rlcore.errors import InputsError
from rlcore.plugins.checks import Refused, check_arguments
from rlcore.plugins.fence import Fence, one_by_one
from rlcore.plugins.registry import registries
from rlcore.profiling import phase
from rlcore.safe_text import show

if TYPE_CHECKING:
    from rlcore.protocols import RunView
    from rlcore.types import Trajectories


HOOKS = tuple(name for name in vars(hookspecs) if name.startswith("on_"))
"""The hooks of observers."""


def check_observer(observer: Any, where: str) -> None:
    """Check that an object implements an observer hook, and that its hooks take arguments that exist.

    Args:
        observer: any object or module.
        where: its place in the arguments, for errors.

    Raises:
        InputsError: it is a class, has no hook, or a hook has an unknown argument.
    """
    if isinstance(observer, type):
        raise InputsError(f"{where} = {observer.__name__}: is a class; pass an object of it: {observer.__name__}(...)")
    implemented = [hook for hook in HOOKS if callable(getattr(observer, hook, None))]
    if not implemented:
        hooks = ", ".join(f"{hook}({', '.join(_arguments(hook))})" for hook in HOOKS)
        raise InputsError(
            f"{where} = {show(observer)}: is no observer, because it has none of the methods {hooks}; define one or "
            "more of them, with any subset of these arguments"
        )
    for hook in implemented:
        try:
            check_arguments(getattr(observer, hook), hook, _arguments(hook))
        except Refused as refused:
            raise InputsError(f"{where} ({type(observer).__name__}): {refused.reason}") from None


def find_hook(observer: Any, hook: str) -> Callable[..., Any] | None:
    """Return a function that calls a hook of an object with the arguments that it takes; None if it has none."""
    method = getattr(observer, hook, None)
    if not callable(method):
        return None
    parameters = inspect.signature(method).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    taken = [name for name in _arguments(hook) if takes_all or name in parameters]
    return lambda **arguments: method(**{name: arguments[name] for name in taken})


def _arguments(hook: str) -> list[str]:
    return list(inspect.signature(getattr(hookspecs, hook)).parameters)


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
        self._own = set[str]()
        for name, each in own.items():
            self.add(name, each)

    def add(self, name: str, observer: Any) -> None:
        """Call the hooks that an object has as methods, too; `name` is used in messages."""
        self._own.add(name)
        for hook, calls in self._observers.items():
            if (call := find_hook(observer, hook)) is not None:
                calls.append((name, call))

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
        def disable(_: BaseException) -> None:
            for observers in self._observers.values():
                observers[:] = [observer for observer in observers if observer[0] != plugin]

        step = 0 if arguments["run"] is None else arguments["run"].step
        fence = self.fence.around(plugin, hook, step, event="observer_dropped", drop=disable)
        with fence, phase("hooks"), phase(plugin):
            call(**arguments)
