"""A component: a name, what it stands for, and the dist that brought it."""

from __future__ import annotations

import importlib
import re
from typing import Any, Generic, TypeVar, cast

import attrs

from rlcore.errors import PluginError

T = TypeVar("T")

KINDS = {
    "trainers": "trainer",
    "pipelines": "pipeline",
    "architectures": "architecture",
    "rollout_stores": "rollout store",
    "loggers": "logger",
    "samplers": "sampler",
    "rewards": "reward",
    "optimizers": "optimizer",
    "schedulers": "scheduler",
    "commands": "command",
}
"""The registries, each with what one of its components is called."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_LONGEST = 500  # letters of what an exception says
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def normalise(dist: str) -> str:
    """Spell a dist's name the one way the packaging standard compares it."""
    return re.sub(r"[-_.]+", "-", dist).lower()


@attrs.frozen(eq=False)
class Component(Generic[T]):
    """Hold what a register hook said; nothing is imported before `target` or `config_class` is called.

    Attributes:
        kind: registry it belongs to, such as `trainers`.
        name: short name, as users write it.
        dist: name of the dist that brought it.
        version: that dist's version.
        summary: one line for a reader.
        reference: the component, or `"module:attribute"` of it.
        config_reference: the class of its options, or `"module:attribute"` of it, or None.
    """

    kind: str
    name: str
    dist: str
    version: str
    summary: str
    reference: Any
    config_reference: Any

    @property
    def qualified(self) -> str:
        """Return the full name, `dist:name`, which never clashes."""
        return f"{self.dist}:{self.name}"

    @property
    def is_reserved(self) -> bool:
        """Tell whether its short name stays its own, whoever else registers it: that of a command of the core."""
        return self.kind == "commands" and self.dist == "rlcore"

    def target(self) -> T:
        """Return the component itself, importing it on first use.

        Raises:
            PluginError: the import fails, for whatever reason.
        """
        return cast("T", self._load(self.reference, "target"))

    def config_class(self) -> type | None:
        """Return the class of its options, importing it on first use; None where it has none.

        Raises:
            PluginError: the import fails, or yields something that is not a config class.
        """
        found = self._load(self.config_reference, "config")
        if found is not None and not (isinstance(found, type) and attrs.has(found)):
            raise PluginError(
                f"{self}: its config {self.config_reference!r} is not a class made with @rlcore.config.config"
            )
        return cast("type | None", found)

    def _load(self, reference: Any, role: str) -> Any:
        if not isinstance(reference, str):
            return reference
        module, _, attribute = reference.partition(":")
        try:
            found: Any = importlib.import_module(module)
            for part in attribute.split("."):
                found = getattr(found, part)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a stranger's module may raise anything, SystemExit included
            raise PluginError(f"{self}: cannot load its {role} {reference!r}: {describe_error(error)}") from error
        return found

    def __str__(self) -> str:
        return f"{KINDS[self.kind]} '{self.name}' ({self.dist} {self.version})"


def describe_error(error: BaseException) -> str:
    """Say an exception in one line."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # noqa: BLE001  # the fence: an exception of a stranger's may fail even to say what it is
        lines = []
    said = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]} ..."


def check_component(component: Component[Any]) -> None:
    """Refuse a registration that could never be used.

    Raises:
        PluginError: the name, target, config or summary is not of the form a register hook takes.
    """
    name: Any = component.name
    target, config = component.reference, component.config_reference
    what = f"{KINDS[component.kind]} {name!r}"
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise PluginError(f"{what}: a name is letters, digits, '-', '_' and '.', such as 'my-algo'")
    if not (callable(target) or (isinstance(target, str) and _REFERENCE.fullmatch(target))):
        raise PluginError(f"{what}: target is {target!r}; it must be callable or 'module:attribute'")
    known = config is None or (isinstance(config, type) and attrs.has(config))
    if not (known or (isinstance(config, str) and _REFERENCE.fullmatch(config))):
        raise PluginError(f"{what}: config is {config!r}; it must be a config class, 'module:attribute' or None")
    if component.kind == "commands" and config is not None:
        raise PluginError(f"{what}: config is {config!r}; a command has none: its target adds arguments to a parser")
    summary: Any = component.summary
    if not isinstance(summary, str):
        raise PluginError(f"{what}: summary is {summary!r}; it must be text")


@attrs.frozen
class Dropped:
    """A part of a plugin that raised, and was left out of the rest of its run.

    Attributes:
        plugin: `dist:entry-point` of an observer or wrapper, `dist:name` of a logger.
        what: the hook or method that raised.
        step: steps done by then.
        error: what it raised, in one line.
    """

    plugin: str
    what: str
    step: int
    error: str

    def __str__(self) -> str:
        return f"{self.plugin}  {self.what} at step {self.step}: {self.error}"
