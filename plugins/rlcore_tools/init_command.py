"""The command `rlcore init`: a configuration file with every option of a trainer's run as a comment."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path

from rlcore.config import Row, describe
from rlcore.errors import RunExists


def command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Add the arguments of `rlcore init` to its parser, and return the function that runs it."""
    parser.add_argument("trainer", metavar="TRAINER", help="name of an installed trainer")
    parser.add_argument("--out", type=Path, metavar="FILE.yaml", help="file to write; default: TRAINER.yaml")
    return _init


def _init(arguments: argparse.Namespace) -> int:
    from rlcore.plugins.registry import all_registries
    from rlcore.protocols import TrainerTraits
    from rlcore.settings import TrainConfig

    known = all_registries()
    component = known.trainers.get(arguments.trainer)
    path = arguments.out or Path(f"{component.name}.yaml")
    if path.exists():
        raise RunExists(f"{path}: exists; name another file with --out")
    options, needs = component.config_class(), TrainerTraits(component.target()).needs
    lines = [f"# {component.summary}. Fill in the values in capitals; a comment shows an option's default.", ""]
    own = TrainerTraits(component.target()).architecture
    architecture = known.architectures.get(own if isinstance(own, str) else "causal_lm").config_class()
    lines += ["model:", "  path: MODEL  # hub id, folder or GGUF file"]
    lines += [*_comments([] if architecture is None else describe(architecture)), ""]
    lines += ["trainer:", f"  name: {arguments.trainer}"]
    lines += [*_comments([] if options is None else describe(options)), ""]
    sections = groupby(
        (row for row in describe(TrainConfig) if "." in row.path), key=lambda row: row.path.split(".")[0]
    )
    for section, rows in sections:
        inner = [_without_section(row) for row in rows]
        required = [row.path for row in inner if section == "data" and row.path in needs]
        written = [f"  {name}: {name.upper()}  # {_help(inner, name)}" for name in required]
        comments = _comments([row for row in inner if row.path not in required])
        lines += [f"{section}:", *written, *comments, ""]
    path.write_text("\n".join(lines), encoding="utf-8")
    print(f"{path}: fill in the values in capitals, then run rlcore train {path}")
    return 0


def _without_section(row: Row) -> Row:
    return Row(row.path.partition(".")[2], row.type, row.default, row.range, row.unit, row.meaning, row.source)


def _help(rows: Sequence[Row], name: str) -> str:
    return next(row.meaning for row in rows if row.path == name)


def _comments(rows: Sequence[Row]) -> list[str]:
    """Return one comment per option: its name, default and meaning; nested options are under their section."""
    lines = []
    for is_nested, group in groupby(rows, key=lambda row: row.path.rpartition(".")[0]):
        lines += [f"  # {is_nested}:"] if is_nested else []
        for row in group:
            name = f"  {row.path.rpartition('.')[2]}" if is_nested else row.path
            lines.append(f"  # {name}: {json.dumps(row.default)}  # {row.meaning}")
    return lines
