"""Describe, check and merge configuration: one frozen attrs class per component, structured strictly by cattrs."""

from __future__ import annotations

from rlcore.describe import Row, describe
from rlcore.options import config, evolve, option
from rlcore.structuring import structure
from rlcore.unstructuring import merge, unstructure
from rlcore.yamlfiles import dump_yaml, load_yaml, parse_overrides

__all__ = [
    "Row",
    "config",
    "describe",
    "dump_yaml",
    "evolve",
    "load_yaml",
    "merge",
    "option",
    "parse_overrides",
    "structure",
    "unstructure",
]
