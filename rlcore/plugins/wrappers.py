"""Put around what components build what plugins wrap it in, and let no wrapper disturb a run."""

from __future__ import annotations

from collections.abc import Callable
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
        "to",
        "use_forward",
        "training_step",
        "score",
        "reference_score",
        "decoder",
        "save_pretrained",
        "load_pretrained",
        "export",
    ),
    "rollout_stores": ("append", "take", "__len__", "state_dict", "load_state_dict"),
    "loggers": ("metrics", "completions", "close"),
}
"""What stands in for an object must have, by the kind of its component; what stands in for a function is called."""


@attrs.frozen(eq=False)
class Layer:
    """Hold what one plugin answered about a component.

    Attributes:
        plugin: its name, `dist:entry-point`.
        wrap: the function it gave; None where it raised.
        error: what it raised, if it did.
    """

    plugin: str
    wrap: Callable[[Any], Any] | None
    error: BaseException | None = None


def layers_of(component: Component[Any], hooks: pluggy.PluginManager, config: TrainConfig | None = None) -> list[Layer]:
    """Ask every plugin what it wraps `component` in; return the layers, innermost first. Nothing is built.

    Args:
        component: what is in use.
        hooks: those of the plugins.
        config: the configuration of the run it is used in, None outside a run.
    """
    layers = []
    for plugin, call in one_by_one(hooks, HOOK):
        try:
            for wrap in call(component=component, config=config):
                if not callable(wrap):
                    raise TypeError(f"it returned {wrap!r}; it must return a function, or None to leave it alone")
                layers.append(Layer(plugin, wrap))
        except (Exception, SystemExit) as error:  # noqa: BLE001  # the fence: a hook may raise anything
            layers.append(Layer(plugin, None, error))
    return layers


class Wrapping:
    """Wrap what the components of one run build; a plugin that raises is logged once and wraps nothing more in it.

    Args:
        hooks: those of the plugins of this process when left out.
        fence: keeps a list of who was dropped.
        config: the run's configuration, which plugins may ask for; None outside a run.

    Raises:
        PluginError: from every method, where RLCORE_STRICT_PLUGINS is set and a plugin raises.
    """

    def __init__(
        self,
        hooks: pluggy.PluginManager | None = None,
        fence: Fence | None = None,
        config: TrainConfig | None = None,
    ) -> None:
        self._hooks = registries().discovery.hooks if hooks is None else hooks
        self._fence, self._config = fence or Fence(), config
        self._asked: dict[Component[Any], list[Layer]] = {}
        self._dropped: set[str] = set()

    @property
    def plugins(self) -> set[str]:
        """Name the plugins that wrap a component they have been asked about."""
        wrapping = {layer.plugin for layers in self._asked.values() for layer in layers}
        return wrapping - self._dropped

    def layers(self, component: Component[Any]) -> list[Layer]:
        """Ask once what `component` is wrapped in, innermost first."""
        if component not in self._asked:
            self._asked[component] = []
            for layer in layers_of(component, self._hooks, self._config):
                if layer.plugin in self._dropped:
                    continue
                if layer.error is not None:
                    self._drop(layer.plugin, component, layer.error)
                else:
                    self._asked[component].append(layer)
        return self._asked[component]

    def wrap(self, component: Component[Any], built: Any) -> Any:
        """Return what is used in place of what `component` built: the thing itself, where nobody wraps it."""
        for layer in self.layers(component):
            if layer.wrap is None or layer.plugin in self._dropped:
                continue
            try:
                outer = layer.wrap(built)
                needed = [name for name in METHODS.get(component.kind, ("__call__",)) if hasattr(built, name)]
                missing = [name for name in needed if not hasattr(outer, name)]
                if outer is None or missing:
                    lacks = f", which has no {missing[0]}" if missing and outer is not None else ""
                    wanted = "it must return what is used in place of what it got"
                    raise TypeError(f"its function returned {outer!r:.80}{lacks}; {wanted}")
            except (Exception, SystemExit) as error:  # noqa: BLE001  # the fence: a wrapper may raise anything
                self._drop(layer.plugin, component, error)
            else:
                built = outer
        return built

    def _drop(self, plugin: str, component: Component[Any], error: BaseException) -> None:
        what = f"{HOOK} of {KINDS[component.kind]} '{component.name}'"
        self._fence.drop(plugin, what, 0, error, event="wrapper_dropped")
        self._dropped.add(plugin)
