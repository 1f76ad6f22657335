"""Wrappers of what components build; a wrapper that raises is disabled and does not affect the run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import attrs
import pluggy

from rlcore.components import KINDS, Component
from rlcore.plugins.fence import Fence, one_by_one
from rlcore.plugins.registry import registries

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


def layers_of(component: Component[Any], hooks: pluggy.PluginManager, config: TrainConfig | None = None) -> list[Layer]:
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

    def wrap(self, component: Component[Any], built: Any) -> Any:
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

    def _isolated(self, plugin: str, component: Component[Any]) -> AbstractContextManager[None]:
        what = f"{HOOK} of {KINDS[component.kind]} '{component.name}'"
        return self._fence.around(plugin, what, 0, event="wrapper_dropped", drop=lambda _: self._dropped.add(plugin))
