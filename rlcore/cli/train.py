"""The command `rlcore train`, and short commands: the name of a trainer, with every option of a run as an argument.

Torch and the training loop are imported only when a command runs.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from rlcore.components import Component
from rlcore.config import Row
from rlcore.config.synonyms import replacement
from rlcore.errors import InputsError
from rlcore.logging import FORMATS, LEVELS


def command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Add the arguments of `rlcore train` to its parser, and return the function that runs it."""
    parser.add_argument("file", type=Path, metavar="FILE.yaml", help="configuration; `rlcore show` lists the options")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="override an option, such as trainer.clip=0.1"
    )
    parser.add_argument("--log-level", choices=list(LEVELS), help="log events at this level and above")
    parser.add_argument("--log-format", choices=list(FORMATS), help="explicit: prefix events with file, line and rank")
    parser.add_argument("--profile", action="store_true", help="write a time profile, as run.profile=true does")
    parser.add_argument("--no-progress", action="store_true", help="do not show a progress bar")
    return partial(_train, parser)


def _train(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    import traceback

    from rlcore import logging
    from rlcore.config import load_yaml, merge, parse_overrides

    if arguments.log_level is not None:
        logging.set_verbosity(arguments.log_level)
    if arguments.log_format is not None:
        formats = {"plain": logging.reset_format, "explicit": logging.enable_explicit_format}
        formats[arguments.log_format]()
    if arguments.no_progress:
        logging.disable_progress_bar()
    if arguments.profile and "torch" in arguments.overrides:
        parser.error("argument --profile: takes no value; for 'torch', write run.profile=torch instead")
    overrides = parse_overrides(arguments.overrides)
    values = merge(load_yaml(arguments.file), overrides)
    if arguments.profile:
        run = overrides.get("run")
        if isinstance(run, Mapping) and run.get("profile") is False:
            parser.error("argument --profile: not allowed with run.profile=false")
        run = values.get("run")
        if run is None or (isinstance(run, Mapping) and not run.get("profile")):
            values = merge(values, {"run": {"profile": True}})
    where = f"{arguments.file} + command line" if overrides or arguments.profile else str(arguments.file)
    if (code := start_processes(values, where, arguments.words)) is not None:
        return code
    from rlcore.components import describe_error
    from rlcore.errors import PluginError
    from rlcore.training.api import train_from_config

    try:
        train_from_config(values, where)
    except SystemExit as error:  # its code would be this command's, and 0 look like a run that has finished
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise PluginError(
            f"{frame.filename}:{frame.lineno} raised {describe_error(error)}, which ends no run; raise another "
            "exception to report a failure"
        ) from error
    return 0


def start_processes(values: Mapping[str, Any], where: str, words: Sequence[str]) -> int | None:
    """Run `rlcore *words` as `run.processes` and `run.cluster` say; return the exit code, or None to train here.

    Raises:
        ConfigError: an option of the core is invalid, which each process would report, or no plugin starts processes.
    """
    run = values.get("run")
    if not isinstance(run, Mapping) or "RLCORE_STARTED" in os.environ or os.environ.get("WORLD_SIZE", "1") != "1":
        return None
    if run.get("processes") in (None, 1) and not run.get("cluster"):
        return None
    from rlcore.config import structure
    from rlcore.plugins.observers import find_processes
    from rlcore.settings import TrainConfig

    options = structure(TrainConfig, values, where=where).run
    return find_processes(where, options.processes, options.cluster).start(options.processes, words)


RUN_OPTIONS = ("steps", "epochs", "name", "seed")
"""Options of the section `run` that need no prefix, unless the trainer has an option of that name."""

_NO_OPTIONS = ("overrides", "refuse", "words")


def find_trainer(name: str) -> Component[Any] | None:
    """Return the installed trainer that a command names; None if there is none, or a plugin's command has the name."""
    from rlcore.plugins.registry import all_registries

    known = all_registries()
    return known.trainers.get(name) if not known.commands.matches(name) and name in known.trainers else None


def trainer_names() -> list[str]:
    """Return the names of the trainers that are commands."""
    from rlcore.plugins.registry import all_registries

    names = {component.name for component in all_registries().trainers}
    return sorted(name for name in names if find_trainer(name) is not None)


def fill(parser: argparse.ArgumentParser, component: Component[Any]) -> Callable[[argparse.Namespace], int]:
    """Add the arguments of a trainer's command to its parser, and return the function that trains."""
    from rlcore.config import describe
    from rlcore.settings import TrainConfig

    parser.add_argument("--model", dest="model.path", metavar="MODEL", help="hub id, folder or GGUF file of the model")
    parser.add_argument("--data", dest="data", metavar="DATA", help="prompts or samples, whichever the trainer needs")
    parser.usage = "%(prog)s [--model MODEL] [--data DATA] [--OPTION VALUE ...] [key=value ...]"
    options = component.config_class()
    own = [] if options is None else describe(options)
    taken = {"model", "data"} | {row.path for row in own}
    for row in own:
        names = [f"--trainer.{row.path}", *([f"--{row.path}"] if row.path not in ("model", "data") else [])]
        names += ["--lr"] if row.path == "optimizer.lr" and "lr" not in taken else []
        _add(parser, names, f"trainer.{row.path}", row.meaning, row.default)
    for row in describe(TrainConfig):
        section, _, short = row.path.partition(".")
        if section not in ("trainer", "model") and row.path not in taken:
            is_short = section == "run" and short in RUN_OPTIONS and short not in taken
            _add(parser, [f"--{row.path}", *([f"--{short}"] if is_short else [])], row.path, row.meaning, row.default)
    of_models = _options_of_models()
    for row in of_models.values():
        _add(parser, [f"--model.{row.path}"], f"model.{row.path}", row.meaning, row.default)
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="any other option, as for train")
    known = [f"model.{path}" for path in of_models] + [row.path for row in describe(TrainConfig) if "." in row.path]
    parser.set_defaults(refuse=partial(_refuse, parser, known))
    return partial(_train_by_name, component)


def _options_of_models() -> dict[str, Row]:
    """Return the options of all architectures: which of them the trainer has is known once it is imported."""
    from rlcore.config import describe
    from rlcore.plugins.registry import all_registries

    classes = [architecture.config_class() for architecture in all_registries().architectures]
    rows: dict[str, Row] = {}
    for row in [row for options in classes if options is not None for row in describe(options)]:
        rows.setdefault(row.path, row)
    return rows


def _add(parser: argparse.ArgumentParser, names: list[str], path: str, meaning: str, default: Any) -> None:
    text = f"{meaning} (default: {default})".replace("%", "%%")
    parser.add_argument(*names, dest=path, metavar="VALUE", help=text)


def _refuse(parser: argparse.ArgumentParser, known: Sequence[str], options: Sequence[str]) -> NoReturn:
    """Exit with code 2, and with what to write instead of unknown options."""
    found = {}
    for option in options:
        name = option.lstrip("-")
        sections = [f"--{path}" for path in known if path.partition(".")[2] == name]
        found[option] = f"use {' or '.join(sections)}" if sections else replacement(name, ())
    parser.error("; ".join(f"no such option {option}{f': {use}' if use else ''}" for option, use in found.items()))


def _train_by_name(component: Component[Any], arguments: argparse.Namespace) -> int:
    from rlcore.config import merge, parse_overrides

    given = {path: text for path, text in vars(arguments).items() if path not in _NO_OPTIONS and text is not None}
    needs = getattr(component.target(), "needs", ())
    main_input = "prompts" if "prompts" in needs else "samples"
    if (data := given.pop("data", None)) is not None:
        given[f"data.{main_input}"] = data
    values = parse_overrides([f"{path}={text}" for path, text in given.items()] + arguments.overrides)
    found = {section: values.get(section) or {} for section in ("model", "data")}
    missing = [] if "path" in found["model"] else ["--model MODEL"]
    missing += [
        "--data DATA" if name == main_input else f"--data.{name} {name.upper()}"
        for name in needs
        if name not in found["data"]
    ]
    if missing:
        raise InputsError(f"trainer '{component.name}' needs {' and '.join(missing)} (rlcore {component.name} --help)")
    where = f"rlcore {component.name}"
    if (code := start_processes(values, where, arguments.words)) is not None:
        return code
    from rlcore.training.api import train_from_config

    train_from_config(merge({"trainer": {"name": component.qualified}}, values), where)
    return 0
