"""List the options of a config class, for `rlcore show` and the generated pages."""

from __future__ import annotations

from typing import Any

import attrs

from rlcore.options import describe_range
from rlcore.unstructuring import unstructure
from rlcore.wording import default_of, fields, section_class, type_name


@attrs.frozen
class Row:
    """Hold what there is to say of one option.

    Attributes:
        path: dotted, from the class described.
        type: as a reader of YAML would write it.
        default: plain value.
        range: interval or comparison; empty if there is none.
        unit, meaning, source: as its class declares them.
    """

    path: str
    type: str
    default: Any
    range: str
    unit: str
    meaning: str
    source: str


def describe(cls: type) -> list[Row]:
    """List every option of `cls`, those of nested sections included, in the order they are declared."""
    return _rows(cls, None, "")


def _rows(cls: type, base: Any, prefix: str) -> list[Row]:
    rows = []
    for name, (field, tp) in fields(cls).items():
        default = default_of(field) if base is None else getattr(base, field.name)
        section = section_class(tp)
        if section:
            rows += _rows(section, default if isinstance(default, section) else None, f"{prefix}{name}.")
            continue
        metadata = field.metadata
        rows.append(
            Row(
                path=prefix + name,
                type=type_name(tp),
                default="(must be given)" if default is attrs.NOTHING else unstructure(default),
                range=describe_range(metadata),
                unit=metadata.get("unit", ""),
                meaning=metadata.get("help", ""),
                source=metadata.get("source", ""),
            )
        )
    return rows
