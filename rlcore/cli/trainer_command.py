"""Short commands: the name of a trainer, with every option of a run as an argument, in place of a YAML file."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from rlcore.cli.local_processes import processes_to_start, start
from rlcore.components import Component
from rlcore.config import Row
from rlcore.config.synonyms import replacement
from rlcore.errors import InputsError

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

    parser.add_argument("--model", dest="model.path", metavar="MODEL", help="hub id or folder of the model")
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
    return partial(_train, component)


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


def _train(component: Component[Any], arguments: argparse.Namespace) -> int:
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
    if (processes := processes_to_start(values, where)) > 1:
        return start(processes, arguments.words)
    from rlcore.training.api import train_from_config

    train_from_config(merge({"trainer": {"name": component.qualified}}, values), where)
    return 0
