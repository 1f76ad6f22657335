"""Calls of the observer hooks of a run; an observer that raises is disabled and does not affect the run.

A plain object is an observer too: a method with the name of an observer hook implements it, without a package.

Also in this file: calls of the hooks of plugins, one plugin at a time: one that raises is named, and does not affect
the others; what plugins provide for options of the core, such as an uploader for `run.push_to_hub`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

from rlcore import errors, hookspecs
from rlcore.components import Dropped, describe_error
from rlcore.errors import InputsError, PluginError
from rlcore.logging import get_logger
from rlcore.plugins.builtin import published
from rlcore.plugins.discovery import Refused, check_arguments
from rlcore.plugins.metadata import is_on
from rlcore.plugins.registry import describe_source, registries, services
from rlcore.profiling import phase
from rlcore.safe_text import show

if TYPE_CHECKING:
    from rlcore.protocols import ParallelFiles, Processes, RunView, Uploader
    from rlcore.types import Trajectories


_log = get_logger("rlcore")
T = TypeVar("T")


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


HOOKS = tuple(name for name in vars(hookspecs) if name.startswith("on_"))
"""The hooks of observers."""


def check_observer(observer: object, where: str) -> None:
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


def find_hook(observer: object, hook: str) -> Callable[..., object] | None:
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
        idle: plugins, as `dist:entry-point`, whose observers are not called, because the run does not use them.
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
        own: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        hooks = registries().discovery.hooks if hooks is None else hooks
        self.fence = fence or Fence()
        # The plugin that was registered last is called first, as in pluggy.
        self._observers: dict[str, list[tuple[str, Callable[..., object]]]] = {
            hook: [each for each in one_by_one(hooks, hook)[::-1] if each[0] not in idle] for hook in HOOKS
        }
        self._own = set[str]()
        for name, each in own.items():
            self.add(name, each)

    def add(self, name: str, observer: object) -> None:
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

    def _call_each(self, hook: str, **arguments: object) -> None:
        with ExitStack() as calls:  # makes the calls in reverse order, and raises after the last
            for plugin, call in reversed(self._observers[hook]):
                calls.callback(self._call, plugin, call, hook, **arguments)

    def _call_all(self, hook: str, **arguments: object) -> None:
        for plugin, call in list(self._observers[hook]):
            self._call(plugin, call, hook, **arguments)

    def _call(self, plugin: str, call: Callable[..., object], hook: str, **arguments: Any) -> None:
        def disable(_: BaseException) -> None:
            for observers in self._observers.values():
                observers[:] = [observer for observer in observers if observer[0] != plugin]

        step = 0 if arguments["run"] is None else arguments["run"].step
        fence = self.fence.around(plugin, hook, step, event="observer_dropped", drop=disable)
        with fence, phase("hooks"), phase(plugin):
            call(**arguments)


def idle_providers(options: Mapping[str, object], where: str) -> set[str]:
    """Return the plugins, as `dist:entry-point`, that a run does not use, because the options are not set.

    Args:
        options: values of options of the core that plugins implement by observers and wrappers, such as `run.profile`.
        where: file or call that contains them, for errors.

    Raises:
        ConfigError: an option is set, and no loaded plugin implements it.
    """
    for option, value in options.items():
        if value:
            require_provider(option, value, where)
    unset = {option for option, value in options.items() if not value}
    return {f"{one.dist}:{one.name}" for one in registries().discovery.plugins if unset & one.options}


def find_uploader(repo: str, where: str) -> Uploader:
    """Return what uploads a trained model to `repo`; raise ConfigError if no loaded plugin does."""
    return _provided(services().uploader(), "run.push_to_hub", repo, where)


def find_parallel_files(where: str) -> ParallelFiles:
    """Return what writes and reads tensors in parallel; raise ConfigError if no loaded plugin does."""
    return _provided(services().parallel_files(), "checkpoint.format", "dcp", where)


def find_processes(where: str, processes: int, cluster: object) -> Processes:
    """Return what starts the processes of a run; raise ConfigError if no loaded plugin does."""
    option, value = ("run.cluster", cluster) if cluster else ("run.processes", processes)
    return _provided(services().processes(cluster), option, value, where)


def _provided(found: T | None, option: str, value: object, where: str) -> T:
    """Return what plugins have for an option of the core.

    Raises:
        ConfigError: they have nothing.
    """
    if found is None:
        require_provider(option, value, where)
        raise errors.ConfigError(f"{where}: {option} = {value!r}: no plugin has a service for it")
    return found


def describe_provider(kind: str, name: str) -> str:
    """Return which dist a published component comes with, and how to install it, as the end of a sentence."""
    return describe_source(published(kind)[name], registries().discovery.plugins)


def require_provider(option: str, value: object, where: str) -> None:
    """Check that a loaded plugin implements an option of the core.

    Raises:
        ConfigError: the published plugin that does is not installed, is disabled or failed to load.
    """
    source, plugins = published("options")[option], registries().discovery.plugins
    if any(option in plugin.options for plugin in plugins):
        return
    providers = [one for one in plugins if one.dist == source.dist and source.plugin in {"", one.name}]
    reason = f" ({providers[0].reason})" if providers and providers[0].reason else ""
    raise errors.ConfigError(f"{where}: {option} = {value!r}: {describe_source(source, plugins)}{reason}")
