"""Which options `rlcore show` prints: those of components and sections by their names.

Also in this file: the learning rates of `rlcore show`: the default of a trainer, the rule that adapts it to the model,
and sources.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

import attrs

from rlcore.components import KINDS, Component
from rlcore.config.options import fields
from rlcore.errors import UnknownComponent
from rlcore.plugins.registry import all_registries
from rlcore.settings import OptimizerConfig
from rlcore_transformers.optimizers.learning_rate_rule import (
    ADAPTER_SOURCES,
    SIZE_SOURCES,
    adapted_rate,
    describe_rule,
)

if TYPE_CHECKING:
    from rlcore.config.options import Row


_WIDEST = max(map(len, KINDS)) + 2


@attrs.frozen
class Options:
    """The options of one component or section, as `rlcore show` prints them.

    Attributes:
        name: full name of the component, or name of the section.
        what: kind, name and dist.
        summary: one-line description.
        config: config class with the options, or None.
        instead: text to print if there are no options.
        part: path of the option, or of the section within it, to print alone; empty for all.
    """

    name: str
    what: str
    summary: str
    config: type | None
    instead: str = "it has no options"
    part: str = ""

    @property
    def rows(self) -> list[Row]:
        """The options to print."""
        from rlcore.config.options import describe

        rows = describe(self.config) if self.config else []
        return [row for row in rows if not self.part or f"{row.path}.".startswith(f"{self.part}.")]


NAMING = {
    "trainer": "trainers",
    "model": "architectures",
    "loggers": "loggers",
    "sampler": "samplers",
    "store": "rollout_stores",
    "optimizer": "optimizers",
    "scheduler": "schedulers",
}
"""Options that name a component -> the registry in which the name is looked up."""


def find_options(name: str) -> list[Options]:
    """Return the options of the section called `name`, or of the components of any kind with that name.

    Args:
        name: the name; with a dot and a path behind it, that option alone is returned.

    Raises:
        UnknownComponent: no section or component has this name, or it has no such option.
        AmbiguousComponent: several dists registered a component of one kind under this name.
    """
    owner, _, part = name.partition(".")
    found = [attrs.evolve(each, part=part) for each in _find_all_options(owner)]
    if part and not any(each.rows for each in found):
        paths = [row.path for each in found for row in attrs.evolve(each, part="").rows]
        near = difflib.get_close_matches(part, paths, n=1)
        hint = f" Did you mean '{owner}.{near[0]}'?" if near else ""
        raise UnknownComponent(f"'{owner}' has no option '{part}'.{hint} `rlcore show {owner}` prints all options")
    return [each for each in found if each.rows or not part]


def _find_all_options(name: str) -> list[Options]:
    sections, mappings = _sections(), _mappings()
    if name in sections:
        return [sections[name]]
    if name in mappings:
        return [Options(name, f"mapping 'model.{name}'", name, mappings[name].section_class(name))]
    return [
        Options(component.qualified, str(component), component.summary, component.config_class(), _instead(component))
        for component in find_components(name, [*sections, *mappings])
    ]


def find_components(name: str, sections: Collection[str]) -> list[Component[Any]]:
    """Return the components of any kind with a name.

    Args:
        name: the name.
        sections: further names that the error suggests and lists.

    Raises:
        UnknownComponent: no component has this name.
        AmbiguousComponent: several dists registered a component of one kind under this name.
    """
    found = [registry.get(name) for registry in all_registries() if registry.matches(name)]
    if found:
        return found
    if name in NAMING:
        registry = getattr(all_registries(), NAMING[name])
        names = (component.name if component.name in registry else component.qualified for component in registry)
        choices = ", ".join(f"rlcore show {each}" for each in names)
        raise UnknownComponent(f"the options of '{name}' are those of the component it names: {choices}")
    everything = [*sections, *(component.name for registry in all_registries() for component in registry)]
    near = difflib.get_close_matches(name, everything, n=1, cutoff=0.5)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    lines = [f"no section or component is called '{name}'.{hint}"]
    if sections:
        lines.append(f"  {'sections:':<{_WIDEST}}{', '.join(sections)}")
    lines += [
        f"  {registry.kind + ':':<{_WIDEST}}{', '.join(sorted({each.name for each in registry}))}"
        for registry in all_registries()
        if len(registry)
    ]
    raise UnknownComponent("\n".join([*lines, f"  {'see:':<{_WIDEST}}rlcore list-plugins"]))


def _instead(component: Component[Any]) -> str:
    is_command = component.kind == "commands"
    return f"rlcore {component.name} --help prints its arguments" if is_command else "it has no options"


def _sections() -> dict[str, Options]:
    from rlcore.config.options import fields, section_class
    from rlcore.settings import TrainConfig

    return {
        name: Options(name, f"section '{name}'", field.metadata["help"], section_class(tp))
        for name, (field, tp) in fields(TrainConfig).items()
        if section_class(tp)
    }


def _mappings() -> dict[str, Component[Any]]:
    """Return the mappings in the section `model`, each with the first architecture that has it."""
    return {
        name: component
        for component in reversed(list(all_registries().architectures))
        for name in component.facts.get("sections", {})
    }


SIZES = (1.5e6, 124e6, 5e8, 7e9)
"""Numbers of parameters for which rates are printed."""


@attrs.frozen
class ShownRate:
    """The learning rate of an optimizer in a trainer's options.

    Attributes:
        path: the option, such as `optimizer.lr`.
        default: the rate of every model; None if it follows the model.
        rule: the rate of a model if the option is null.
        sources: of the rule and of the factor of adapters.
        weights: rate of the rule by the number of parameters, if all weights train.
        adapter: the same with an adapter.
    """

    path: str
    default: float | None
    rule: str
    sources: str
    weights: dict[str, float]
    adapter: dict[str, float]


def shown_rates(cls: type) -> list[ShownRate]:
    """Return the learning rates of a config class, of a run in which no other plugin has a rule."""
    return [_shown(f"{path}.lr", config) for path, config in _optimizers(cls)]


def rate_lines(rate: ShownRate) -> list[str]:
    """Return a learning rate as lines of text."""
    first = f"{rate.path} = null, the default: " if rate.default is None else f"{rate.path} = null: "
    lines = [
        f"{first}{rate.rule}",
        *(
            f"  {name}: {', '.join(f'{value:g} for {size}' for size, value in rates.items())}"
            for name, rates in (("weights", rate.weights), ("adapter", rate.adapter))
        ),
        f"  sources: {rate.sources}",
    ]
    return lines if rate.default is None else [f"{rate.path} = {rate.default:g}, the default: for every model", *lines]


def _optimizers(cls: type) -> Iterator[tuple[str, OptimizerConfig]]:
    for name, (field, _) in fields(cls).items():
        if isinstance(field.default, OptimizerConfig):
            yield name, field.default


def _shown(path: str, config: OptimizerConfig) -> ShownRate:
    weights, adapter = (
        {f"{size:.3g}": adapted_rate(*config.published, size, is_adapter=is_adapter) for size in SIZES}
        for is_adapter in (False, True)
    )
    rule = describe_rule(*config.published)
    return ShownRate(path, config.lr, rule, f"{SIZE_SOURCES}; adapters: {ADAPTER_SOURCES}", weights, adapter)
