"""The command `rlcore convert`: the configuration of a trlX or TRL run as a configuration file of rlcore."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rlcore.safe_text import visible


def command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Add the arguments of `rlcore convert` to its parser, and return the function that runs it."""
    parser.add_argument("file", type=Path, metavar="FILE", help="YAML of trlX, a sweep of it too, or arguments of TRL")
    parser.add_argument("--trainer", help="trainer of a sweep or of TRL's arguments; needed if they fit several")
    parser.add_argument("--out", type=Path, metavar="FILE.yaml", help="file to write; default: standard output")
    return partial(_convert, parser)


def _convert(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from rlcore.errors import ConfigError
    from rlcore.plugins.registry import all_registries
    from rlcore_tools.conversion import trl_arguments, trlx_config, trlx_sweep
    from rlcore_tools.synonyms import component_names

    values = _read(arguments.file)
    is_trlx = isinstance(values.get("train"), dict) and isinstance(values.get("method"), dict)
    is_sweep = trlx_sweep.is_sweep(values)
    library = trlx_config if is_trlx or is_sweep else trl_arguments
    name = arguments.trainer or library.trainer_of(values)
    if name is None:
        parser.error(
            f"{arguments.file} fits several trainers: name one with --trainer ({', '.join(library.trainers())})"
        )
    known = {each.replace("_", ""): each for each in library.trainers()}
    short = known.get(name.lower().replace("_", "").removesuffix("trainer"), name)  # such as OnlineDPOTrainer
    method = component_names("trainers").get(short) if short in library.trainers() else None
    component = all_registries().trainers.get(short if method is None else method.ours)
    options = component.config_class()
    if options is None:
        raise ConfigError(f"--trainer {name}: it has no options to convert to")
    try:
        if is_sweep:
            conversion = trlx_sweep.convert_sweep(values, component.name, options)
        elif is_trlx:
            conversion = trlx_config.convert_trlx(values, component.name, options)
        else:
            conversion = trl_arguments.convert_trl(values, component.name, options, method=short)
    except (TypeError, ValueError, AttributeError) as error:  # text where a number is expected, for example
        raise ConfigError(f"{arguments.file}: a value has another type than that library's: {error}") from error
    if library is trl_arguments and arguments.trainer is None:
        conversion.notes.insert(
            0, f"trainer.name: the arguments are read as those of TRL's {name}; --trainer names another"
        )
    text = conversion.as_yaml(arguments.file.name)
    if arguments.out is None:
        print(text, end="")
    else:
        arguments.out.write_text(text, encoding="utf-8")
    for title, lines in (("not converted", conversion.left), ("check", conversion.notes)):
        for line in lines:
            print(f"{title}: {visible(line)}", file=sys.stderr)
    return 0


def _read(file: Path) -> dict[str, Any]:
    from rlcore.config import load_yaml
    from rlcore.errors import ConfigError

    if file.suffix == ".py":
        raise ConfigError(
            f"{file}: is a script, and arguments are read from a YAML or JSON file. TRL writes one: "
            "pathlib.Path('args.json').write_text(trainer.args.to_json_string())"
        )
    return load_yaml(file)
