"""The command `rlcore show`: options of components and sections, and the plugins that wrap components."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
from rich.text import Text

from rlcore._version import __version__
from rlcore.components import Component, describe_error
from rlcore.loggers.console import make_console, make_list
from rlcore.plugins.choice import Layer, layers_of
from rlcore.plugins.registry import all_registries
from rlcore_tools.shown_options import Options, find_components, find_options

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from rlcore.config.options import Row

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
    from rlcore_tools.shown_options import rate_lines, shown_rates

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
    from rlcore_tools.shown_options import shown_rates

    shown: list[dict[str, Any]] = [
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


def find_layers(name: str | None) -> list[tuple[Component[Any], list[Layer]]]:
    """Return the wrappers of each component called `name`, or of every component; no component is built.

    Raises:
        UnknownComponent: no component has this name.
        AmbiguousComponent: several dists registered a component of one kind under this name.
    """
    everything = [component for registry in all_registries() for component in registry]
    found = everything if name is None else find_components(name, ())
    wrappable = [component for component in found if component.kind != "commands"]  # commands are not part of a run
    return [(component, layers_of(component, all_registries().discovery.hooks)) for component in wrappable]


def print_layers(found: list[tuple[Component[Any], list[Layer]]]) -> None:
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


def layers_as_json(found: list[tuple[Component[Any], list[Layer]]]) -> str:
    """Return the content of `print_layers` as JSON."""
    wrapped: list[dict[str, Any]] = [
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
