"""The selection of one component by name, with its options checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from rlcore.components import Component, describe_error
from rlcore.config import Problems
from rlcore.config.structure import structure_valid
from rlcore.errors import ConfigError, PluginError
from rlcore.plugins.registry import Registry
from rlcore.plugins.wrappers import Wrapping
from rlcore.safe_text import show


@attrs.frozen(eq=False)
class Choice:
    """A selected component, its options (None if it has none), and the wrappers of what it builds."""

    component: Component[Any]
    options: Any
    wrapping: Wrapping

    def wrap(self, built: Any) -> Any:
        """Apply the wrappers of the component to what it built."""
        return self.wrapping.wrap(self.component, built)

    def build(self) -> Any:
        """Return the sampler, pipeline or reward: the target, or its return value for the options.

        Raises:
            PluginError: the target calls `sys.exit`.
        """
        return self.wrap(self.unwrapped())

    def unwrapped(self) -> Any:
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
        self, component: Component[Any], section: Mapping[str, Any], path: str, *, skip: tuple[str, ...] = ()
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
