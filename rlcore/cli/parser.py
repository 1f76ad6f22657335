"""The argument parser of the command line: the names of all commands, and the arguments of the chosen one.

The core's commands come from a table, so that they need no plugin. Plugins are loaded only if the first word is not a
command of the core, or for `--commands`, which lists all commands; `--help` therefore starts fast.

`rlcore --complete` completes words: `complete -o default -C "rlcore --complete" rlcore` turns it on, and for each
completion bash runs it with the command line in COMP_LINE and the position of the cursor in COMP_POINT.

Also in this file: the command `rlcore train`, and short commands: the name of a trainer, with every option of a run
as an argument.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast

from rlcore._version import __version__
from rlcore.components import Component
from rlcore.config import Row
from rlcore.config.yaml_files import replacement
from rlcore.errors import AmbiguousComponent, InputsError, PluginError, RLCoreError, UnknownCommand, UnknownTrainer
from rlcore.logging import FORMATS, LEVELS
from rlcore.plugins.builtin import COMMANDS
from rlcore.safe_text import visible


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


def start_processes(values: Mapping[str, object], where: str, words: Sequence[str]) -> int | None:
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


def fill(parser: argparse.ArgumentParser, component: Component[object]) -> Callable[[argparse.Namespace], int]:
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
        _add_option(parser, names, f"trainer.{row.path}", row.meaning, row.default)
    for row in describe(TrainConfig):
        section, _, short = row.path.partition(".")
        if section not in ("trainer", "model") and row.path not in taken:
            is_short = section == "run" and short in RUN_OPTIONS and short not in taken
            _add_option(
                parser, [f"--{row.path}", *([f"--{short}"] if is_short else [])], row.path, row.meaning, row.default
            )
    of_models = _options_of_models()
    for row in of_models.values():
        _add_option(parser, [f"--model.{row.path}"], f"model.{row.path}", row.meaning, row.default)
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


def _add_option(parser: argparse.ArgumentParser, names: list[str], path: str, meaning: str, default: object) -> None:
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


def _train_by_name(component: Component[object], arguments: argparse.Namespace) -> int:
    from rlcore.config import merge, parse_overrides
    from rlcore.protocols import TrainerTraits

    given = {path: text for path, text in vars(arguments).items() if path not in _NO_OPTIONS and text is not None}
    needs = TrainerTraits(component.target()).needs
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


Run = Callable[[argparse.Namespace], Any]
_PLAIN = re.compile(r"[-+]?[0-9]*\.?[0-9]+([eE][-+]?[0-9]{1,3})?|true|false|null")
_OWN = {name: (target, summary) for name, target, summary in COMMANDS}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(visible(message))


def parse(words: Sequence[str]) -> tuple[Run, argparse.Namespace]:
    """Return the function that runs the chosen command, and the parsed arguments.

    argparse does not accept positional words on both sides of an option, as in `a=1 --json b=2`: it leaves the later
    ones unparsed. They are appended to the argument `overrides`.

    Raises:
        PluginError: a plugin's command cannot be loaded, or cannot add its arguments.
        SystemExit: code 2 on a usage error, code 0 after `--help`, `--commands` and `--version`.
    """
    parser = _Parser(
        prog="rlcore",
        description="Reinforcement-learning fine-tuning of language models, one plugin per algorithm.",
        epilog="Trainers are commands too: rlcore TRAINER --model MODEL --data DATA. Plugins add their own commands: "
        "rlcore --commands. RLCORE_DEBUG=1 shows the traceback behind an error. "
        'Completion in bash: complete -o default -C "rlcore --complete" rlcore',
    )
    parser.add_argument("--version", action="version", version=f"rlcore {__version__}")
    parser.add_argument("--commands", action="help", help="list the commands of plugins too, and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    own = {name: _add(commands, name, summary) for name, (_, summary) in _OWN.items()}
    run: Run = _nothing
    switches = list(itertools.takewhile(lambda word: word.startswith("-"), words))
    if any(word.startswith("--c") for word in switches):
        for name, component in _plugin_commands():
            _add(commands, name, component.summary, f"({component.dist} {component.version})")
        parser.epilog = ". ".join(filter(None, [parser.epilog, _describe_unloaded()]))
    elif len(words) > len(switches) and not any(word.startswith(("--v", "-h", "--h")) for word in switches):
        name = words[len(switches)]
        run = _fill_own(own[name], name) if name in _OWN else _fill_other(commands, name, parser)
    arguments, rest = parser.parse_known_args(words)
    if rest and ("overrides" not in arguments or any(word.startswith("-") for word in rest)):
        unknown = _without_values(rest)
        if "refuse" in arguments:
            arguments.refuse(unknown)
        options = [_as_override(option, words) for option in unknown if option.startswith("--") and "." in option]
        instead = f"; write options of the configuration as {' '.join(options)}" if options else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{instead if 'overrides' in arguments else ''}")
    if rest:
        arguments.overrides += rest
    return run, arguments


def _without_values(words: Sequence[str]) -> list[str]:
    """Return the options among words without their values, which may be secrets; words if there is no option."""
    options = [word.partition("=")[0] for word in words if word.startswith("-")]
    return options or [word.partition("=")[0] for word in words]


def _as_override(option: str, words: Sequence[str]) -> str:
    """Return `--trainer.beta .2` as `trainer.beta=.2`; a value that is no number or truth value may be a secret."""
    given = next(word for word in words if word.partition("=")[0] == option)
    value = given.partition("=")[2] or next(iter(words[words.index(given) + 1 :]), "")
    return f"{option.lstrip('-')}={value if _PLAIN.fullmatch(value) else '...'}"


def command_names() -> list[str]:
    """Return the names of all commands that `rlcore --commands` lists."""
    return [*_OWN, *(name for name, _ in _plugin_commands())]


def command_parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of one command or of a trainer's short command, with its arguments.

    Raises:
        UnknownCommand: no command has this name.
        AmbiguousComponent: several plugins register a command with this name.
        PluginError: the command cannot be loaded, or cannot add its arguments.
    """
    parser = _Parser(prog=f"rlcore {name}")
    if name in _OWN:
        _fill_own(parser, name)
    else:
        from rlcore.plugins.registry import all_registries

        trainer = find_trainer(name)
        if trainer is not None:
            fill(parser, trainer)
        else:
            _fill(parser, all_registries().commands.get(name))
    return parser


def _fill_own(parser: argparse.ArgumentParser, name: str) -> Run:
    module, _, attribute = _OWN[name][0].partition(":")
    return cast("Run", getattr(importlib.import_module(module), attribute)(parser))


def _fill_other(commands: object, name: str, parser: argparse.ArgumentParser) -> Run:
    """Add the arguments of a plugin's command, or of the short command of a trainer."""
    trainer = find_trainer(name)
    if trainer is not None:
        return fill(_add(commands, name, trainer.summary), trainer)
    component = _find(name, parser)
    return _fill(_add(commands, name, component.summary), component)


def _nothing(_: argparse.Namespace) -> int:  # never called: argparse exits if no command is given
    return 0


def _find(name: str, parser: argparse.ArgumentParser) -> Component[Any]:
    """Return a plugin's command; otherwise exit with code 2 and one line with similar names and unloaded plugins."""
    from rlcore.plugins.builtin import how_to_install, published
    from rlcore.plugins.registry import all_registries

    registries = all_registries()
    known = published("commands").get(name)
    if known is not None and all(plugin.dist != known.dist for plugin in registries.discovery.plugins):
        parser.error(f"rlcore {name} is a command of {known.dist}: {how_to_install(known.dist, known.extra)}")
    try:
        if name in published("trainers"):  # its short command is missing, because the trainer is
            registries.trainers.get(name)
        return registries.commands.get(name)
    except (UnknownCommand, UnknownTrainer, AmbiguousComponent) as error:
        parser.error(f"{str(error).splitlines()[0]} {_describe_unloaded()}".rstrip())


def _plugin_commands() -> Iterator[tuple[str, Component[Any]]]:
    """Yield the plugins' commands by their short names, or by `dist:name` where the short name is not unique."""
    from rlcore.plugins.registry import all_registries

    commands = all_registries().commands
    for component in commands:
        if not component.is_reserved:
            yield component.name if commands.matches(component.name) == [component] else component.qualified, component


def _describe_unloaded() -> str:
    """Return a sentence that lists the plugins not loaded, except disabled ones; empty if there are none."""
    from rlcore.plugins.discovery import State
    from rlcore.plugins.registry import all_registries

    plugins = all_registries().discovery.plugins
    missing = [str(plugin) for plugin in plugins if not plugin.is_loaded and plugin.state is not State.DISABLED]
    return f"Not loaded: {', '.join(missing)}; see rlcore list-plugins." if missing else ""


def _fill(parser: argparse.ArgumentParser, component: Component[Any]) -> Run:
    """Add the arguments of a plugin's command to its parser, and return the function that runs it.

    Raises:
        PluginError: the target cannot be imported, raises, or returns something other than a function.
    """
    from rlcore.components import describe_error
    from rlcore.plugins.discovery import preserve_process_state

    with preserve_process_state():
        target = component.target()
        try:
            run = target(parser)
        except (KeyboardInterrupt, RLCoreError):
            raise
        except BaseException as error:
            raise PluginError(f"{component}: cannot add its arguments: {describe_error(error)}") from error
    if not callable(run):
        raise PluginError(f"{component}: its target returned {run!r:.80}; it must return the function that runs it")
    return cast("Run", run)


def _add(commands: Any, name: str, summary: str, source: str = "") -> argparse.ArgumentParser:
    described = f"{summary[:1].upper()}{summary[1:]}.".replace("%(prog)", "rlcore") if summary else None
    shown = f"{summary} {source}".strip().replace("%", "%%")  # argparse would expand %
    parser: argparse.ArgumentParser = commands.add_parser(name, help=shown, description=described)
    return parser


def complete(environ: Mapping[str, str]) -> list[str]:
    """Return the completions of the word at the cursor; an empty list if bash should complete a file name."""
    line = environ.get("COMP_LINE", "")
    words = line[: int(environ.get("COMP_POINT", len(line)))].split(" ")
    *before, current = words[1:] or [""]
    before = [word for word in before if word]
    if not before:
        candidates = (
            ["--commands", "--help", "--version"] if current.startswith("-") else [*command_names(), *trainer_names()]
        )
    else:
        candidates = _arguments(before, current)
    return sorted(word for word in candidates if word.startswith(current))


def _arguments(before: list[str], current: str) -> list[str]:
    try:
        parser = command_parser(before[0])
    except RLCoreError:  # an unknown or broken command has no completions
        return []
    actions = parser._actions  # noqa: SLF001  argparse has no public way to list them
    last = next((action for action in actions if before[-1] in action.option_strings), None)
    if last is not None and last.nargs != 0:
        return _choices(last)
    if current.startswith("-"):
        return [option for action in actions for option in action.option_strings]
    return [choice for action in actions if not action.option_strings for choice in _choices(action)]


def _choices(action: argparse.Action) -> list[str]:
    return [] if action.choices is None else list(map(str, action.choices))
