"""The selection of one component by name, with its options checked.

Also in this file: wrappers of what components build; a wrapper that raises is disabled and does not affect the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import attrs
import pluggy

from rlcore.components import KINDS, Component, describe_error
from rlcore.config import Problems
from rlcore.config.structure import structure_valid
from rlcore.errors import ConfigError, PluginError
from rlcore.plugins.observers import Fence, one_by_one
from rlcore.plugins.registry import Registry, registries
from rlcore.safe_text import show

if TYPE_CHECKING:
    from rlcore.settings import TrainConfig


HOOK = "wrap_component"
METHODS = {
    "trainers": ("steps", "policy", "state_dict", "load_state_dict"),
    "architectures": (
        "to", "use_forward", "training_step", "score", "reference_score", "decoder", "save_pretrained",
        "load_pretrained", "export",
    ),
    "rollout_stores": ("append", "take", "__len__", "state_dict", "load_state_dict"),
    "loggers": ("metrics", "completions", "close"),
}  # fmt: skip
"""Methods that a replacement must have, by kind of component; for all other kinds it must be callable."""


@attrs.frozen(eq=False)
class Layer:
    """One plugin's wrapper of a component.

    Attributes:
        plugin: name of the plugin, `dist:entry-point`.
        wrap: the function that the hook returned; None if the hook raised.
        error: the exception that the hook raised, if any.
    """

    plugin: str
    wrap: Callable[[Any], Any] | None
    error: BaseException | None = None


def layers_of(
    component: Component[object], hooks: pluggy.PluginManager, config: TrainConfig | None = None
) -> list[Layer]:
    """Call the hook `wrap_component` of every plugin and return the wrappers, innermost first. Nothing is built.

    Args:
        component: the component to wrap.
        hooks: hooks of the plugins.
        config: configuration of the run; None outside a run.
    """
    layers = []
    for plugin, call in one_by_one(hooks, HOOK):
        try:
            for wrap in call(component=component, config=config):
                if not callable(wrap):
                    raise TypeError(f"it returned {wrap!r}; it must return a function, or None to leave it alone")
                layers.append(Layer(plugin, wrap))
        except (Exception, SystemExit) as error:  # noqa: BLE001  # isolation: a hook may raise anything
            layers.append(Layer(plugin, None, error))
    return layers


class Wrapping:
    """The wrappers of one run; a plugin that raises is logged once and wraps nothing else in the run.

    Args:
        hooks: hooks of the plugins; those of this process if omitted.
        fence: records which wrappers were disabled.
        config: configuration of the run, which hooks receive; None outside a run.

    Raises:
        PluginError: from every method, if RLCORE_STRICT_PLUGINS is set and a plugin raises.
    """

    def __init__(
        self,
        hooks: pluggy.PluginManager | None = None,
        fence: Fence | None = None,
        config: TrainConfig | None = None,
    ) -> None:
        self._hooks = registries().discovery.hooks if hooks is None else hooks
        self._fence, self._config = fence or Fence(), config
        self._layers: dict[Component[Any], list[Layer]] = {}
        self._dropped: set[str] = set()

    @property
    def plugins(self) -> set[str]:
        """The plugins that wrap any component for which `layers` has been called."""
        wrapping = {layer.plugin for layers in self._layers.values() for layer in layers}
        return wrapping - self._dropped

    def layers(self, component: Component[Any]) -> list[Layer]:
        """Return the wrappers of `component`, innermost first; its hooks are called only once."""
        if component not in self._layers:
            self._layers[component] = []
            for layer in layers_of(component, self._hooks, self._config):
                if layer.plugin in self._dropped:
                    continue
                with self._isolated(layer.plugin, component):
                    if layer.error is not None:
                        raise layer.error
                    self._layers[component].append(layer)
        return self._layers[component]

    def wrap(self, component: Component[Any], built: object) -> Any:
        """Return `built`, which `component` built, with all wrappers applied."""
        for layer in self.layers(component):
            if layer.wrap is None or layer.plugin in self._dropped:
                continue
            with self._isolated(layer.plugin, component):
                outer = layer.wrap(built)
                needed = [name for name in METHODS.get(component.kind, ("__call__",)) if hasattr(built, name)]
                missing = [name for name in needed if not hasattr(outer, name)]
                if outer is None or missing:
                    lacks = f", which has no {missing[0]}" if missing and outer is not None else ""
                    raise TypeError(
                        f"its function returned {outer!r:.80}{lacks}; it must return a replacement of its argument"
                    )
                built = outer
        return built

    def _isolated(self, plugin: str, component: Component[object]) -> AbstractContextManager[None]:
        what = f"{HOOK} of {KINDS[component.kind]} '{component.name}'"
        return self._fence.around(plugin, what, 0, event="wrapper_dropped", drop=lambda _: self._dropped.add(plugin))


@attrs.frozen(eq=False)
class Choice:
    """A selected component, its options (None if it has none), and the wrappers of what it builds."""

    component: Component[Any]
    options: Any
    wrapping: Wrapping

    def wrap(self, built: object) -> Any:
        """Apply the wrappers of the component to what it built."""
        return self.wrapping.wrap(self.component, built)

    def build(self) -> Any:
        """Return the sampler, pipeline or reward: the target, or its return value for the options.

        Raises:
            PluginError: the target calls `sys.exit`.
        """
        return self.wrap(self.unwrapped())

    def unwrapped(self) -> object:
        """Return the same as `build`, without wrappers.

        Raises:
            PluginError: the target calls `sys.exit`.
        """
        target = self.component.target()
        if self.options is None:
            return target
        try:
            return target(self.options)
        except SystemExit as error:  # otherwise the process would end without a message
            raise PluginError(f"{self.component}: its target raised {describe_error(error)}") from error

    def factory(self) -> Callable[[], Any]:
        """Return a function that creates a store with these options."""
        target: Callable[..., Any] = self.component.target()
        return lambda: self.wrap(target() if self.options is None else target(self.options))


@attrs.frozen
class Chooser:
    """Selects components by name.

    Attributes:
        where: file or call that contains the names, for errors.
        wrapping: the wrappers of the run.
        problems: collects the errors of options; by default they are raised.
    """

    where: str
    wrapping: Wrapping
    problems: Problems | None = None

    def named(self, registry: Registry[Any], entry: Any, path: str) -> Choice:
        """Select the component of an entry, which is a name or a mapping with `name` and options.

        Args:
            registry: components of one kind.
            entry: the entry in the configuration.
            path: dotted path of `entry`, for errors.
        """
        section = dict(entry) if isinstance(entry, Mapping) else {"name": entry}
        if not isinstance(section.get("name"), str):
            raise ConfigError(
                f"{self.where}: {path} = {show(entry)}: must be a name, or a mapping with `name` and options"
            )
        return self.choice(registry.get(section["name"]), section, path, skip=("name",))

    def choice(
        self, component: Component[Any], section: Mapping[str, object], path: str, *, skip: tuple[str, ...] = ()
    ) -> Choice:
        """Structure the options of a component.

        Args:
            component: the component.
            section: its options, and keys that belong to the core.
            path: dotted path of `section`, for errors.
            skip: the keys of `section` that belong to the core.

        Raises:
            ConfigError: an option is unknown, of the wrong type or out of range.
            PluginError: an option has the name of a key in `skip`.
        """
        self.wrapping.layers(component)
        values = {name: value for name, value in section.items() if name not in skip}
        cls = component.config_class()
        check_keys(component, cls, skip)
        if cls is not None:
            options, error = structure_valid(cls, values, where=self.where, path=path)
        else:
            what = f"{self.where}: {path}.{next(iter(values), None)}: '{component.name}' has no options"
            options, error = None, ConfigError(what) if values else None
        if error is not None:
            if self.problems is None:
                raise error
            self.problems.add(error)
        return Choice(component, options, self.wrapping)


def check_keys(component: Component[Any], cls: type | None, own: Sequence[str]) -> None:
    """Refuse a config class with a field that cannot be set, because its key belongs to the core.

    Raises:
        PluginError: a field of `cls` has one of the names in `own`.
    """
    taken = [] if cls is None else [field.name for field in attrs.fields(cls) if field.name in own]
    if taken:
        raise PluginError(
            f"{component} has an option '{taken[0]}', which cannot be set: the core reserves this key in the "
            f"same section (reserved: {', '.join(own)}); its author must rename it"
        )
