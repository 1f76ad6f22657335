"""Generate the page on configuration from the config classes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby

import attrs

from rlcore.components import KINDS
from rlcore.config import Row, describe
from rlcore.plugins.registry import registries
from rlcore.settings import TrainConfig
from rlcore_transformers.models.model_options import TokenizerConfig

SHOWN = ("rlcore", "rlcore-transformers", "rlcore-ppo", "rlcore-ilql", "rlcore-sft")
INTRODUCTION = """\
# Configuration

Generated from the config classes by `make docs`. `rlcore show NAME` prints the same tables, including those of
third-party plugins.

Options are set in a YAML file (`rlcore train run.yaml`), on the command line by their dotted path (`trainer.clip=0.1`),
or in arguments of `rlcore.train`, as dicts or config objects. Values are never converted silently: unknown keys, wrong
types and values out of range are errors, and the errors of all sections are reported at once. Files follow YAML 1.2:
`1e-5` is a number, `no` is text, only `true` and `false` are booleans, and duplicate keys are errors. Values may be
nested 100 deep, and the aliases of a file may repeat 100,000 values.

The sections `trainer` and `model` and the entries of `loggers` contain the name of a component (`model.architecture`
for a model; optional) and its options. A run's `config.yaml` contains its resolved configuration with all defaults.

## A configuration can run code

Wherever a configuration names `module:function` (prompts, samples, rewards, metrics, a logit mask), the module is
imported, from the installed packages or the working folder, and the function is called, with all rights of whoever
starts the run; `model.trust_remote_code` does the same with the code of a hub repository. A configuration from a
stranger is therefore a program from a stranger: read it, and the modules it names, before you run it. `rlcore doctor
--config FILE.yaml` checks a file without importing these modules.

## Secrets

No message contains the value of an option that does not exist, because a misspelt name may hide a secret. The value of
an option with the name of a secret (`api_key`, `token`, `password`, `client_secret`) appears neither in messages nor in
`config.yaml`, manifests and logs, nor does the login of a URL. `<hidden>` stands in their place, and is refused as a
value: to start a run again from its `config.yaml`, set these options on the command line. Prefer environment variables
for secrets.
"""


def pages() -> dict[str, str]:
    """Return a mapping from the page's path to its text."""
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
    """Return the sections of a run's configuration, with all top-level options in the first table."""
    rows = describe(TrainConfig)
    defaults = {field.name: field.default for field in attrs.fields(TrainConfig)}
    alone = [row for row in rows if "." not in row.path]
    nested = groupby((row for row in rows if "." in row.path), key=lambda row: row.path.partition(".")[0])
    written = [section("Top level", "Options outside the sections below", alone)]
    for name, group in nested:
        written.append(section(f"The section `{name}`", str(type(defaults[name]).__doc__), group))
    return written


def section(title: str, lead: str, rows: Iterable[Row]) -> str:
    """Return one table with its heading."""
    lines = [f"## {title}", "", f"{lead[:1].upper()}{lead[1:].rstrip('.')}.", ""]
    lines += ["| option | type | default | range | unit | meaning | source |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        default = json.dumps(row.default)
        cells = (f"`{row.path}`", row.type, f"`{default}`", row.range, row.unit, row.meaning, row.source)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])
