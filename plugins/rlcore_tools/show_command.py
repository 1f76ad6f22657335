"""The command `rlcore show`: options of components and sections, and the plugins that wrap components.

Also in this file: which options `rlcore show` prints: those of components and sections by their names.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import redirect_stdout
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
from rich.text import Text

from rlcore._version import __version__
from rlcore.components import KINDS, Component, describe_error
from rlcore.config.options import fields
from rlcore.errors import UnknownComponent
from rlcore.loggers.console import make_console, make_list
from rlcore.plugins.choice import Layer, layers_of
from rlcore.plugins.registry import all_registries
from rlcore.settings import OptimizerConfig
from rlcore_transformers.optimizers.learning_rate_rule import (
    ADAPTER_SOURCES,
    SIZE_SOURCES,
    adapted_rate,
    describe_rule,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

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


def find_components(name: str, sections: Collection[str]) -> list[Component[object]]:
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


def _instead(component: Component[object]) -> str:
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


SCHEMA = 1
WIDTH_OF_TABLE = 120
"""Columns of a terminal below which options are printed one below the other."""


def command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Add the arguments of `rlcore show` to its parser, and return the function that runs it."""
    parser.description = "Print the options of a component, or of a section of the configuration file."
    parser.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        help="name of a component (or dist:name) or of a section (gen, run, ...), or of one of its options "
        "(gen.temperature)",
    )
    parser.add_argument(
        "--wrapped",
        action="store_true",
        help="print the plugins that wrap the component NAME; without NAME, of all components",
    )
    parser.add_argument("--json", action="store_true", help="print JSON with a schema number")
    return partial(_show, parser)


def _show(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    if arguments.wrapped:
        return _show_wrapped(arguments)
    if arguments.name is None:
        parser.error("the following arguments are required: NAME (or --wrapped)")
    with redirect_stdout(sys.stderr):  # output of modules while they are imported
        found = find_options(arguments.name)
    if arguments.json:
        print(options_as_json(found))
    else:
        for each in found:
            print_options(each)
    return 0


def _show_wrapped(arguments: argparse.Namespace) -> int:
    with redirect_stdout(sys.stderr):  # output of hooks
        found = find_layers(arguments.name)
    if arguments.json:
        print(layers_as_json(found))
    else:
        print_layers(found)
    return 0


def print_options(options: Options) -> None:
    """Print the options of one component or section: type, default, range, unit, meaning, source."""
    console = make_console()
    console.print(Text(options.what, style="bold") + Text(f": {options.summary}" if options.summary else ""))
    if options.config is None:
        console.print(options.instead)
        return
    if console.is_terminal and console.width < WIDTH_OF_TABLE:
        console.print(*(each for row in options.rows for each in _stacked(row)), sep="\n")
        _print_rates(console, options)
        return
    table = make_list("option", "type", "default", "range", "unit", "meaning", "source")
    for row in options.rows:
        default = row.default if isinstance(row.default, str) else json.dumps(row.default)
        cells = (row.path, row.type, default, row.range, row.unit, row.meaning, row.source)
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)
    _print_rates(console, options)


def _print_rates(console: Console, options: Options) -> None:
    """Print how the learning rates among the options follow the model."""
    for rate in shown_rates(options.config) if options.config and not options.part else ():
        console.print(Text("\n" + "\n".join(rate_lines(rate))), soft_wrap=not console.is_terminal)


def _stacked(row: Row) -> list[RenderableType]:
    """Return an option for a terminal that is too narrow for a table: its name and type, and below its meaning."""
    from rich.padding import Padding

    default = row.default if isinstance(row.default, str) else json.dumps(row.default)
    facts = ", ".join(filter(None, [row.type, row.range, row.unit, f"default {default}"]))
    meaning = Text(row.meaning) + Text(f" ({row.source})" if row.source else "", style="dim")
    return [Text(row.path, style="bold") + Text(f": {facts}", style="not bold"), Padding(meaning, (0, 0, 0, 2))]


def options_as_json(found: list[Options]) -> str:
    """Return the content of `print_options` as JSON."""
    shown: list[dict[str, object]] = [
        {
            "name": options.name,
            "what": options.what,
            "summary": options.summary,
            "options": [attrs.asdict(row) for row in options.rows],
            "learning_rates": [attrs.asdict(rate) for rate in shown_rates(options.config)] if options.config else [],
        }
        for options in found
    ]
    return json.dumps({"schema": SCHEMA, "rlcore": __version__, "shown": shown}, indent=2)


def find_layers(name: str | None) -> list[tuple[Component[object], list[Layer]]]:
    """Return the wrappers of each component called `name`, or of every component; no component is built.

    Raises:
        UnknownComponent: no component has this name.
        AmbiguousComponent: several dists registered a component of one kind under this name.
    """
    everything = [component for registry in all_registries() for component in registry]
    found = everything if name is None else find_components(name, ())
    wrappable = [component for component in found if component.kind != "commands"]  # commands are not part of a run
    return [(component, layers_of(component, all_registries().discovery.hooks)) for component in wrappable]


def print_layers(found: list[tuple[Component[object], list[Layer]]]) -> None:
    """Print one line per component with the plugins that wrap it, innermost first."""
    console = make_console()
    if len(found) > 1 and not any(layers for _, layers in found):
        console.print("no plugin wraps a component")
        return
    for component, layers in found:
        line = Text(f"{component}  ")
        if not layers:
            line.append("not wrapped", style="dim")
        for i, layer in enumerate(layers):
            line.append(f"{' ' if i else ''}<- {layer.plugin}")
            if layer.error is not None:
                line.append(f" (raises {describe_error(layer.error)}; runs skip it)", style="red")
        console.print(line)


def layers_as_json(found: list[tuple[Component[object], list[Layer]]]) -> str:
    """Return the content of `print_layers` as JSON."""
    wrapped: list[dict[str, object]] = [
        {
            "name": component.qualified,
            "what": str(component),
            "layers": [
                {"plugin": layer.plugin, "error": None if layer.error is None else describe_error(layer.error)}
                for layer in layers
            ],
        }
        for component, layers in found
    ]
    return json.dumps({"schema": SCHEMA, "rlcore": __version__, "wrapped": wrapped}, indent=2)
