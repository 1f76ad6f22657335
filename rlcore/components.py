"""Components: registered objects with a name, a dist and options."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import attrs

from rlcore.errors import PluginError
from rlcore.safe_text import hide_logins

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
    "shardings": "sharding",
    "environments": "environment",
    "commands": "command",
}
"""The kinds of components, each with the word for one component of the kind."""
FACTS = {"architectures": ("fits", "sections")}
"""Kind of components → the further arguments of their registration (`rlcore.hookspecs.Register`)."""
COMMON_OPTIONS = ("betas", "eps", "weight_decay")
"""Options of every optimizer that has them in its signature."""
WARMUP, TOTAL = "num_warmup_steps", "num_training_steps"
"""Arguments of a schedule that come from the run, if its signature has them."""
BESIDE_OPTIONS = {"optimizers": ("lr", *COMMON_OPTIONS), "schedulers": (WARMUP, TOTAL)}
"""Kind → arguments that the core passes by name, so that no option of a component may have these names."""
REWARD_KEYS = ("fn", "weight", "name")
"""Keys of a mapping that every reward has; all other keys are options of a registered reward."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_LONGEST = 500  # characters of an exception's message
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def normalise(dist: str) -> str:
    """Return the name of a dist in the normalised form of the packaging standard."""
    return re.sub(r"[-_.]+", "-", dist).lower()


@attrs.frozen(eq=False)
class Component(Generic[T]):
    """A registered component; it is imported when `target` or `config_class` is called.

    Attributes:
        kind: its registry, such as `trainers`.
        name: short name, which users write.
        dist: name of the dist that registered it.
        version: version of the dist.
        summary: one-line description.
        reference: the component, or its `"module:attribute"`.
        config_reference: the class of its options, its `"module:attribute"`, or None.
        facts: the further arguments of its registration, by name.
    """

    kind: str
    name: str
    dist: str
    version: str
    summary: str
    reference: Any
    config_reference: Any
    facts: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def qualified(self) -> str:
        """The full name, `dist:name`, which is unique."""
        return f"{self.dist}:{self.name}"

    @property
    def is_reserved(self) -> bool:
        """Whether no other component can have its short name: true of the core's commands."""
        return self.kind == "commands" and self.dist == "rlcore"

    def target(self) -> T:
        """Return the registered object, which is imported on first use.

        Raises:
            PluginError: the import fails.
        """
        return cast("T", self._load(self.reference, "target"))

    def config_class(self) -> type | None:
        """Return the class of its options, which is imported on first use; None if it has no options.

        Raises:
            PluginError: the import fails, or the object is not a config class.
        """
        return self._load_config(self.config_reference, "config")

    def section_class(self, name: str) -> type | None:
        """Return the class of the options of a mapping in its section, such as `tokenizer` of a model.

        Raises:
            PluginError: the import fails, or the object is not a config class.
        """
        return self._load_config(self.facts.get("sections", {}).get(name), f"section '{name}'")

    def fits(self, spec: object, revision: str | None) -> int:
        """Return how well an architecture fits a model, 0 to 3; 0 if its registration does not state it.

        Raises:
            PluginError: the import fails, or the function raises.
        """
        function = self._load(self.facts.get("fits"), "fits")
        try:
            return 0 if function is None else int(function(spec, revision))
        except Exception as error:  # a third-party function may raise anything
            raise PluginError(f"{self}: its function 'fits' raised {describe_error(error)}") from error

    def _load_config(self, reference: object, role: str) -> type | None:
        cls = self._load(reference, role)
        if cls is not None and not (isinstance(cls, type) and attrs.has(cls)):
            raise PluginError(f"{self}: its {role} {reference!r} is not a class made with @rlcore.config.config")
        return cast("type | None", cls)

    def _load(self, reference: object, role: str) -> Any:
        if not isinstance(reference, str):
            return reference
        module, _, attribute = reference.partition(":")
        try:
            target: object = importlib.import_module(module)
            for part in attribute.split("."):
                target = getattr(target, part)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a third-party module may raise anything, SystemExit included
            reason = f"{describe_error(error)}{self._missing_extra(error)}"
            raise PluginError(f"{self}: cannot load its {role} {reference!r}: {reason}") from error
        return target

    def _missing_extra(self, error: BaseException) -> str:
        """Return how to install a missing library, if the dist has an extra of the component's name; else nothing."""
        if not isinstance(error, ModuleNotFoundError):
            return ""
        from importlib.metadata import PackageNotFoundError, metadata

        try:
            extras = metadata(self.dist).get_all("Provides-Extra") or []
        except PackageNotFoundError:  # a component that was registered by hand
            return ""
        extra = next((extra for extra in extras if normalise(extra) == normalise(self.name)), None)
        return f"; pip install '{self.dist}[{extra}]'" if extra else ""

    def __str__(self) -> str:
        return f"{KINDS[self.kind]} '{self.name}' ({self.dist} {self.version})"


def describe_error(error: BaseException) -> str:
    """Return the type and message of an exception in one line."""
    try:
        lines = str(error).strip().splitlines()
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001  # even `str` of a third-party exception may raise
        lines = []
    text = f"{type(error).__name__}: {hide_logins(lines[0])}" if lines else type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def check_component(component: Component[object]) -> None:
    """Check the arguments of a registration.

    Raises:
        PluginError: the name, target, config or summary is invalid.
    """
    name: object = component.name
    target, config = component.reference, component.config_reference
    what = f"{KINDS[component.kind]} {name!r}"
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise PluginError(f"{what}: a name consists of letters, digits, '-', '_' and '.', such as 'my-algo'")
    if not (callable(target) or is_reference(target)):
        raise PluginError(f"{what}: target is {target!r}; it must be callable or 'module:attribute'")
    if not (config is None or _is_config(config)):
        raise PluginError(f"{what}: config is {config!r}; it must be a config class, 'module:attribute' or None")
    for fact, value in component.facts.items():
        _check_fact(component, fact, value, what)
    if component.kind == "commands" and config is not None:
        raise PluginError(f"{what}: config is {config!r}; a command has none: its target adds arguments to a parser")
    summary: object = component.summary
    if not isinstance(summary, str):
        raise PluginError(f"{what}: summary is {summary!r}; it must be text")


def _check_fact(component: Component[object], fact: str, value: object, what: str) -> None:
    if fact not in FACTS.get(component.kind, ()):
        raise PluginError(f"{what}: '{fact}' is no argument of the registration of {component.kind}")
    if fact == "fits" and not (callable(value) or is_reference(value)):
        raise PluginError(f"{what}: fits is {value!r}; it must be callable or 'module:attribute'")
    if fact == "sections" and not (isinstance(value, Mapping) and all(map(_is_config, value.values()))):
        raise PluginError(f"{what}: sections is {value!r}; it must map names to config classes")


def is_reference(value: object) -> bool:
    """Return whether `value` is text that looks like `module:attribute`."""
    return isinstance(value, str) and bool(_REFERENCE.fullmatch(value))


def _is_config(value: object) -> bool:
    return (isinstance(value, type) and attrs.has(value)) or is_reference(value)


@attrs.frozen
class Dropped:
    """A part of a plugin that raised and was disabled for the rest of the run.

    Attributes:
        plugin: `dist:entry-point` of an observer or wrapper, `dist:name` of a logger.
        what: the hook or method that raised.
        step: number of steps done at the time.
        error: the exception, in one line.
    """

    plugin: str
    what: str
    step: int
    error: str

    def __str__(self) -> str:
        return f"{self.plugin}  {self.what} at step {self.step}: {self.error}"


LANGUAGE_MODEL, SCORER = "a language model", "a model that scores sequences"
"""What most architectures build (`rlcore.protocols.ArchitectureTraits.kind`)."""


_MISSING = object()


class Traits:
    """A view of a component with the members that its protocol leaves optional, each with a default.

    A subclass declares them as attributes with values, and as methods whose bodies are the defaults. A member is read
    from the component at each use; where the component has none, or an attribute in place of a method, the default
    applies. Properties follow from the other members, whatever the component has. The component is not changed, and
    need not inherit from anything.

    Args:
        component: a component, its class, or an object that it built.
    """

    def __init__(self, component: object) -> None:
        self._component = component

    if not TYPE_CHECKING:  # so that only declared members pass the type checker

        def __getattribute__(self, name: str) -> Any:
            own = super().__getattribute__(name)
            if name.startswith("_") or isinstance(getattr(type(self), name), property):
                return own
            found = getattr(self._component, name, own)
            return own if callable(own) and not callable(found) else found

    def __contains__(self, name: str) -> bool:
        """Return whether the component has the member itself."""
        default = getattr(type(self), name)
        found = getattr(self._component, name, _MISSING)
        return callable(found) or (found is not _MISSING and not callable(default))
