"""The command `rlcore list-plugins`: one row per installed plugin, whatever its state."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType

from rich.text import Text

from rlcore._version import __version__
from rlcore.errors import PluginError
from rlcore.loggers.console import make_console, make_list
from rlcore.plugins.discovery import Discovery, Plugin, State, preserve_process_state
from rlcore.plugins.registry import LINE_WIDTH, all_registries

SCHEMA = 1
Failed = Mapping[Plugin, Sequence[str]]
"""Plugin → errors of its components that cannot be imported."""
NONE: Failed = MappingProxyType({})
"""No component has been imported."""
_COLOURS = {State.OK: "green", State.DISABLED: "dim", State.BROKEN: "red"}


def command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Add the arguments of `rlcore list-plugins` to its parser, and return the function that runs it."""
    parser.add_argument("--json", action="store_true", help="print JSON with a schema number")
    parser.add_argument(
        "--check",
        action="store_true",
        help="also import every component; exit with code 1 unless all succeed, every plugin is ok or disabled, and "
        "there are no notes",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE.yaml", help="apply the section `plugins` of this configuration"
    )
    return _list_plugins


def _list_plugins(arguments: argparse.Namespace) -> int:
    with _plugins_of(arguments.config):
        discovery = all_registries().discovery
    failed = _import_components(discovery) if arguments.check else NONE
    if arguments.json:
        print(plugins_as_json(discovery, failed))
    else:
        print_plugins(discovery, failed)
    return int(arguments.check and bool(discovery.complaints or any(failed.values())))


def _import_components(discovery: Discovery) -> Failed:
    """Import the target and the options of every component; return the errors of each plugin."""
    failed: dict[Plugin, list[str]] = {plugin: [] for plugin in discovery.plugins}
    for plugin in discovery.plugins:
        for component in plugin.components:
            for load in (component.target, component.config_class):
                try:
                    with preserve_process_state():
                        load()
                except PluginError as error:
                    failed[plugin].append(str(error))
    return failed


def _plugins_of(file: Path | None) -> AbstractContextManager[None]:
    """Return a context that applies the section `plugins` of a configuration file; no other section is checked."""
    if file is None:
        return nullcontext()
    from rlcore.config import load_yaml
    from rlcore.plugins.metadata import configured
    from rlcore.settings import plugins_section

    section = plugins_section(load_yaml(file), str(file))
    return configured(section.disable, section.only)


ROOM_FOR_NAMES = 20
"""Characters of the column of names beside which a list of components may have `LINE_WIDTH` characters."""


def print_plugins(discovery: Discovery, failed: Failed = NONE) -> None:
    """Print a row per plugin and kind of component, why it is not ok, its remarks, and the errors in `failed`."""
    console, table = make_console(), make_list("plugin", "version", "state", "components")
    parts = Counter(plugin.dist for plugin in discovery.plugins)
    names = [one.dist if parts[one.dist] == 1 else f"{one.dist}:{one.name}" for one in discovery.plugins]
    room = LINE_WIDTH - max(0, max(map(len, names), default=0) - ROOM_FOR_NAMES)
    # On a terminal, rich breaks the lines, and narrow ones have room for a long name and its comma.
    width, table.padding = (9999, (0, 1, 0, 0)) if console.is_terminal else (room, table.padding)
    for name, plugin in zip(names, discovery.plugins, strict=True):
        state = Text(plugin.state, style=_COLOURS.get(plugin.state, "yellow"))
        first, *others = [
            textwrap.fill(f"{kind}: {', '.join(names)}", width, subsequent_indent="  ", break_on_hyphens=False)
            for kind, names in plugin.component_names.items()
        ] or [""]
        table.add_row(name, plugin.version, state, Text(first))
        for components in others:
            table.add_row("", "", "", Text(components))
        if plugin.reason:
            table.add_row("", "", "", Text(plugin.reason, style=state.style))
        for error in failed.get(plugin, ()):
            table.add_row("", "", "", Text(error, style="red"))
        for remark in plugin.remarks:
            table.add_row("", "", "", Text(f"remark: {remark}"))
    console.print(table)
    for note in discovery.notes:
        console.print(Text(f"note: {note}"))


def plugins_as_json(discovery: Discovery, failed: Failed = NONE) -> str:
    """Return the content of `print_plugins` as JSON; a plugin in `failed` has a list of `errors`."""
    plugins = [
        plugin.as_json() | ({"errors": failed[plugin]} if plugin in failed else {}) for plugin in discovery.plugins
    ]
    document = {"schema": SCHEMA, "rlcore": __version__, "plugins": plugins, "notes": list(discovery.notes)}
    return json.dumps(document, indent=2)
