"""The command `rlcore convert`: the configuration of a run of another library as a configuration file of rlcore."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlcore_tools.conversion.conversion import Conversion


def command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Add the arguments of `rlcore convert` to its parser, and return the function that runs it."""
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="YAML of trlX, a sweep of it too, arguments of TRL, or a recipe"
    )
    parser.add_argument("--trainer", help="trainer of a sweep or of TRL's arguments; needed if they fit several")
    parser.add_argument(
        "--processes", type=int, metavar="N", help="processes that the file was written for, by which its batch sizes "
        "are multiplied; default: that of the file, else 1",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="FILE.yaml", help="file to write; default: standard output")
    return partial(_convert, parser)


def _convert(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from rlcore.errors import ConfigError
    from rlcore_tools.conversion.conversion import one_line

    if arguments.processes is not None and arguments.processes < 1:
        parser.error(f"--processes {arguments.processes}: must be at least 1")
    repeats: list[str] = []
    values = _read(arguments.file, repeats)
    try:
        conversion = _conversion(parser, values, arguments)
        conversion.notes += [f"{name}: the file has this key twice, with the same value" for name in repeats]
        text = conversion.as_yaml(arguments.file.name)
    except ConfigError as error:
        lines = [line.removeprefix(f"{arguments.file}: ") for line in str(error).splitlines()]
        raise ConfigError("\n".join(f"{arguments.file}: {line}" for line in lines)) from error
    except (TypeError, ValueError, AttributeError) as error:  # text where a number is expected, for example
        raise ConfigError(f"{arguments.file}: a value has another type than that library's: {error}") from error
    if arguments.out is None:
        print(text, end="")
    else:
        _save(text, arguments.out)
    for title, lines in (("not converted", conversion.left), ("check", conversion.notes)):
        for line in lines:
            print(f"{title}: {one_line(line)}", file=sys.stderr)
    return 0


def _conversion(parser: argparse.ArgumentParser, values: dict[str, Any], arguments: argparse.Namespace) -> Conversion:
    """Convert the values of a file as those of the library and the trainer that they, or the command, name."""
    from rlcore.errors import ConfigError
    from rlcore.plugins.registry import all_registries
    from rlcore_tools.conversion import recipes, trl_arguments, trlx_config
    from rlcore_tools.conversion import trlx_config as trlx_sweep
    from rlcore_tools.synonyms import component_names, synonyms

    is_trlx = isinstance(values.get("train"), dict) and isinstance(values.get("method"), dict)
    is_sweep = trlx_sweep.is_sweep(values)
    library = trlx_config if is_trlx or is_sweep else trl_arguments
    other = None if library is trlx_config else recipes.library_of(values)
    recipe = recipes.read_recipe(values, other) if other is not None else None
    is_trl = library is trl_arguments and recipe is None
    keys = ", ".join(map(repr, list(values)[:5]))
    if values and is_trl and not any(name in synonyms("trl") for name in values):
        raise ConfigError(
            f"none of its keys ({keys}) is an argument of TRL; read are files of TRL, "
            "open-r1, alignment-handbook, axolotl, LLaMA-Factory and trlX"
        )
    name = arguments.trainer or (recipe.trainer if recipe is not None else library.trainer_of(values))
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
    if is_sweep:
        return trlx_sweep.convert_sweep(values, component.name, options)
    if is_trlx:
        return trlx_config.convert_trlx(values, component.name, options, arguments.processes or 1)
    chosen = {} if arguments.processes is None else {"num_processes": arguments.processes}
    given = {**(values if recipe is None else recipe.arguments), **chosen}
    conversion = trl_arguments.convert_trl(given, component.name, options, method=short, recipe=recipe)
    whose = "TRL" if recipe is None else recipe.library
    if arguments.trainer is None:
        conversion.notes.insert(
            0, f"trainer.name: the arguments are read as those of {whose}'s {name}; --trainer names another"
        )
    return conversion


def _save(text: str, out: Path) -> None:
    """Write the file, which was read and compared before, at once: an existing one is whole until then."""
    from rlcore.errors import ConfigError

    part = out.with_name(f".{out.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(out)
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written: {error.strerror}") from error


def _read(file: Path, repeats: list[str]) -> dict[str, Any]:
    from rlcore.config import load_yaml
    from rlcore.errors import ConfigError

    if file.suffix == ".py":
        raise ConfigError(
            f"{file}: is a script, and arguments are read from a YAML or JSON file. TRL writes one: "
            "pathlib.Path('args.json').write_text(trainer.args.to_json_string())"
        )
    values: dict[str, Any] = _join_pairs(load_yaml(file, repeats=repeats), file)
    return values


def _join_pairs(value: Any, file: Path) -> Any:
    """Return a value with its texts joined where JSON escapes a character, such as an emoji, as two surrogates."""
    from rlcore.errors import ConfigError

    if isinstance(value, dict):
        return {_join_pairs(key, file): _join_pairs(part, file) for key, part in value.items()}
    if isinstance(value, list):
        return [_join_pairs(part, file) for part in value]
    if not isinstance(value, str) or value.isascii():
        return value
    try:
        return value.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: {value!r:.60}: has half of a surrogate pair, which is no text") from error
