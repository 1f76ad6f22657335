"""Errors for names that no installed component has: the nearest name, and the package that it comes with."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from rlcore.components import KINDS, Component, normalise
from rlcore.config.synonyms import find_synonym
from rlcore.plugins.builtin import how_to_install, published
from rlcore.plugins.discovery import Plugin

LINE_WIDTH = 90
"""Width of lists of components in errors and tables, without their indentation."""


def explain_unknown(name: str, kind: str, components: Sequence[Component[Any]], plugins: Sequence[Plugin]) -> str:
    """Return the error for a name that no component of a kind has: the nearest name, and what is installed."""
    lines = [f"no {KINDS[kind]} is called '{name}'.{_suggest(str(name), kind, components, plugins)}"]
    installed = [f"{component.name} ({component.dist} {component.version})" for component in components] or ["none"]
    lines += [f"{'              ' if i else '  installed:  '}{row}" for i, row in enumerate(_wrap(installed))]
    missing = [plugin for plugin in plugins if not plugin.is_loaded]
    for i, plugin in enumerate(missing):
        lines.append(f"  {'not loaded: ' if i == 0 else '            '}{plugin}, {plugin.reason}")
    lines.append("  see:        rlcore list-plugins")
    return "\n".join(lines)


def _suggest(name: str, kind: str, components: Sequence[Component[Any]], plugins: Sequence[Plugin]) -> str:
    """Return the nearest name among installed and published components, and how to install it."""
    here = {other: component for component in components for other in (component.name, component.qualified)}
    elsewhere = {other: one.dist for short, one in published(kind).items() for other in (short, f"{one.dist}:{short}")}
    synonym = find_synonym(name, kind)
    if synonym and (synonym.ours in here or synonym.ours in elsewhere):
        options, known = f" with {synonym.how}" if synonym.how else "", synonym.ours in here
        source = "" if known else f", which {describe_source(elsewhere[synonym.ours], plugins)}"
        return f" Use {KINDS[kind]} '{synonym.ours}'{options}{source}."
    dist, colon, short = name.rpartition(":")
    exact = f"{normalise(dist)}{colon}{short}"
    near = difflib.get_close_matches(
        name.lower(), {**here, **({} if exact in elsewhere else elsewhere)}, n=1, cutoff=0.5
    )
    text = ""
    if near and near[0] in here:
        text = f" Did you mean '{near[0]}' ({here[near[0]].dist} {here[near[0]].version})?"
    elif near:
        text = f" Did you mean '{near[0]}'? It {describe_source(elsewhere[near[0]], plugins)}"
    return text + (f" '{name}' {describe_source(elsewhere[exact], plugins)}" if exact in elsewhere else "")


def _wrap(items: Sequence[str]) -> list[str]:
    """Return the items, separated by commas, in lines of at most `LINE_WIDTH` characters, none of them broken."""
    lines = [""]
    for i, item in enumerate(items):
        text = f"{item}," if i < len(items) - 1 else item
        if lines[-1] and len(lines[-1]) + 1 + len(text) > LINE_WIDTH:
            lines.append("")
        lines[-1] = f"{lines[-1]} {text}".lstrip()
    return lines


def describe_source(dist: str, plugins: Sequence[Plugin]) -> str:
    """Return where a component comes from, and how to install or enable its dist, as the end of a sentence."""
    plugin = next((plugin for plugin in plugins if plugin.dist == dist), None)
    if plugin is None:
        return f"comes with {dist}, which is not installed: {how_to_install(dist)}"
    if plugin.is_loaded:
        return f"comes with other versions of {dist}; {plugin.version} is installed"
    return f"comes with {dist}, which is installed, but {plugin.state}"
