"""Write the page on configuration from the config classes, so that it cannot disagree with them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby

import attrs

from rlcore.components import KINDS
from rlcore.config import Row, describe
from rlcore.models.settings import TokenizerConfig
from rlcore.plugins.registry import registries
from rlcore.settings import TrainConfig

SHOWN = ("rlcore", "rlcore-ppo", "rlcore-ilql", "rlcore-sft")
INTRODUCTION = """\
# Configuration

Generated from the config classes by `make docs`. `rlcore show NAME` prints the same tables, those of other people's
plugins too.

An option can stand in a YAML file (`rlcore train run.yaml`), be changed on the command line by its dotted path
(`trainer.clip=0.1`), or be given to `rlcore.train` as a dict or a config object. Nothing is converted silently: an
unknown key, a wrong type and a value out of range are errors, all of them told at once. YAML is read as its 1.2
standard says: `1e-5` is a number, `no` is text, only `true` and `false` are booleans, and no key may stand twice.

The sections `trainer` and `model` and the entries of `loggers` hold a name (`model.architecture` for a model; it may be
left out) and the options of the component that bears it. The resolved configuration of a run, every default filled in,
is in its `config.yaml`.
"""


def pages() -> dict[str, str]:
    """Return the page, by its path in the documentation."""
    parts = [INTRODUCTION, *sections()]
    for registry in registries():
        for component in registry:
            options = component.config_class()
            if component.dist in SHOWN and options is not None:
                title = f"The {KINDS[registry.kind]} `{component.name}`"
                parts.append(section(title, f"{component.summary} ({component.dist})", describe(options)))
    parts.append(section("The mapping `model.tokenizer`", str(TokenizerConfig.__doc__), describe(TokenizerConfig)))
    return {"configuration.md": "\n".join(parts)}


def sections() -> list[str]:
    """Write the sections of a run's configuration, those without options of their own in one table."""
    rows = describe(TrainConfig)
    defaults = {field.name: field.default for field in attrs.fields(TrainConfig)}
    alone = [row for row in rows if "." not in row.path]
    nested = groupby((row for row in rows if "." in row.path), key=lambda row: row.path.partition(".")[0])
    written = [section("Top level", "Beside the sections below", alone)]
    for name, group in nested:
        written.append(section(f"The section `{name}`", str(type(defaults[name]).__doc__), group))
    return written


def section(title: str, lead: str, rows: Iterable[Row]) -> str:
    """Write one table."""
    lines = [f"## {title}", "", f"{lead[:1].upper()}{lead[1:].rstrip('.')}.", ""]
    lines += ["| option | type | default | range | unit | meaning | source |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        default = json.dumps(row.default)
        cells = (f"`{row.path}`", row.type, f"`{default}`", row.range, row.unit, row.meaning, row.source)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])
