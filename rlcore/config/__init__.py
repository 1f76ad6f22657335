"""Describe, check and merge configuration: one frozen attrs class per component, structured strictly by cattrs."""

from __future__ import annotations

from rlcore.config.options import Row, config, describe, evolve, merge, option, unstructure
from rlcore.config.structure import structure
from rlcore.config.yaml_files import ConfigOnly, dump_yaml, index_options, load_yaml, parse_overrides, path_named
from rlcore.errors import Problems

__all__ = [
    "ConfigOnly",
    "Problems",
    "Row",
    "config",
    "describe",
    "dump_yaml",
    "evolve",
    "index_options",
    "load_yaml",
    "merge",
    "option",
    "parse_overrides",
    "path_named",
    "structure",
    "unstructure",
]
