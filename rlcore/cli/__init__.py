"""The command line: light, so that it answers at once, and guarded, so that it answers while every plugin is broken."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path

from rlcore import __version__
from rlcore.cli.new_plugin.kinds import KINDS
from rlcore.cli.rollouts import command as rollouts
from rlcore.errors import RLCoreError
from rlcore.logging import FORMATS, LEVELS
from rlcore.planning import command as planning

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code: 0 well, 1 an error that was said, 2 wrong usage, 130 interrupted."""
    arguments = _parse(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # what plugins say of themselves may be in letters it cannot write
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code: int = arguments.command(arguments)
        sys.stdout.flush()
    except RLCoreError as error:
        if os.environ.get("RLCORE_DEBUG", "") not in {"", "0"}:
            raise
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("rlcore: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the words of a command; argparse itself takes no key=value that follows a switch which follows another."""
    parser = _parser()
    arguments, left = parser.parse_known_args(argv)
    if left and ("overrides" not in arguments or any(word.startswith("-") for word in left)):
        parser.error(f"unrecognized arguments: {' '.join(left)}")
    if left:
        arguments.overrides += left
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rlcore",
        description="Reinforcement-learning fine-tuning of language models, one plugin per algorithm.",
        epilog="RLCORE_DEBUG=1 shows the traceback behind an error.",
    )
    parser.add_argument("--version", action="version", version=f"rlcore {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    train = commands.add_parser("train", help="train as a YAML file says", description="Train as a YAML file says.")
    train.add_argument("file", type=Path, metavar="FILE.yaml", help="configuration; `rlcore show` prints the options")
    train.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="an option by its path, as trainer.clip=0.1"
    )
    train.add_argument("--log-level", choices=list(LEVELS), help="say events of this level and above")
    train.add_argument("--log-format", choices=list(FORMATS), help="explicit: begin each with its file, line and rank")
    train.add_argument("--profile", action="store_true", help="write where the time goes, as run.profile=true does")
    train.add_argument("--no-progress", action="store_true", help="show no progress bar")
    train.set_defaults(command=_train, usage=train)

    listing = commands.add_parser(
        "list-plugins",
        help="list installed plugins, what they bring, and what is wrong with them",
        description="List installed plugins, what they bring, and what is wrong with them.",
    )
    listing.add_argument("--json", action="store_true", help="print JSON, with a schema number")
    listing.add_argument(
        "--check", action="store_true", help="exit with 1 unless every plugin is ok and there are no notes"
    )
    listing.add_argument("--config", type=Path, metavar="FILE.yaml", help="list what a run of this file would see")
    listing.set_defaults(command=_list_plugins)

    show = commands.add_parser(
        "show",
        help="print the options of a component or a section, or what plugins wrap",
        description="Print the options of a component, or of a section of the configuration file.",
    )
    show.add_argument(
        "name", metavar="NAME", nargs="?", help="a component (ppo, rlcore-ppo:ppo) or a section (gen, run, ...)"
    )
    show.add_argument(
        "--wrapped", action="store_true", help="print which plugins wrap what the component NAME builds, or all of them"
    )
    show.add_argument("--json", action="store_true", help="print JSON, with a schema number")
    show.set_defaults(command=_show, usage=show)

    planning.add_command(commands)
    rollouts.add_command(commands)

    doctor = commands.add_parser(
        "doctor",
        help="print what a bug report needs: versions, machine, plugins, and what is wrong",
        description="Print what a bug report needs: versions, machine, plugins, switches, and what is wrong with them.",
    )
    doctor.add_argument("--json", action="store_true", help="print JSON, with a schema number")
    doctor.add_argument("--config", type=Path, metavar="FILE.yaml", help="check this configuration file too")
    doctor.add_argument("--devices", action="store_true", help="ask torch for its devices too, which takes seconds")
    doctor.set_defaults(command=_doctor)

    new = commands.add_parser(
        "new-plugin",
        help="write a new package that works, to make your own plugin of",
        description="Write a new package that works and tests itself, to make your own plugin of.",
    )
    new.add_argument("name", metavar="NAME", help="of the package, as pip will know it: small letters, digits and '-'")
    new.add_argument("--kind", choices=list(KINDS), default="trainer", help="what it brings; a trainer if absent")
    new.add_argument("--path", type=Path, metavar="DIR", help="folder to make; NAME in this one if absent")
    new.set_defaults(command=_new_plugin)
    return parser


def _train(arguments: argparse.Namespace) -> int:
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
        arguments.usage.error("argument --profile: takes no value; for 'torch' write run.profile=torch in its place")
    overrides = parse_overrides(arguments.overrides)
    values = merge(load_yaml(arguments.file), overrides)
    if arguments.profile:
        said = overrides.get("run")
        if isinstance(said, Mapping) and said.get("profile") is False:
            arguments.usage.error("argument --profile: not allowed with run.profile=false")
        run = values.get("run")
        if run is None or (isinstance(run, Mapping) and not run.get("profile")):
            values = merge(values, {"run": {"profile": True}})
    where = f"{arguments.file} + command line" if overrides or arguments.profile else str(arguments.file)
    from rlcore.training.api import train_from_config

    train_from_config(values, where)
    return 0


def _list_plugins(arguments: argparse.Namespace) -> int:
    from rlcore.cli.show import plugins_as_json, print_plugins
    from rlcore.plugins.registry import all_registries

    with _plugins_of(arguments.config):
        discovery = all_registries().discovery
    if arguments.json:
        print(plugins_as_json(discovery))
    else:
        print_plugins(discovery)
    return int(arguments.check and bool(discovery.complaints))


def _plugins_of(file: Path | None) -> AbstractContextManager[None]:
    """Let the section `plugins` of a configuration file hold, of which nothing else is checked."""
    if file is None:
        return nullcontext()
    from rlcore.config import load_yaml
    from rlcore.plugins.switches import configured
    from rlcore.settings import plugins_section

    section = plugins_section(load_yaml(file), str(file))
    return configured(section.disable, section.only)


def _show(arguments: argparse.Namespace) -> int:
    from rlcore.cli.show import find_options, options_as_json, print_options

    if arguments.wrapped:
        return _show_wrapped(arguments)
    if arguments.name is None:
        arguments.usage.error("the following arguments are required: NAME (or --wrapped)")
    with redirect_stdout(sys.stderr):  # what modules print when they are imported
        found = find_options(arguments.name)
    if arguments.json:
        print(options_as_json(found))
    else:
        for each in found:
            print_options(each)
    return 0


def _show_wrapped(arguments: argparse.Namespace) -> int:
    from rlcore.cli.show import find_layers, layers_as_json, print_layers

    with redirect_stdout(sys.stderr):  # what hooks print
        found = find_layers(arguments.name)
    if arguments.json:
        print(layers_as_json(found))
    else:
        print_layers(found)
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from rlcore.cli import doctor, doctor_report

    found = doctor.examine(arguments.config)
    if not arguments.json:
        print(doctor_report.write_report(found), flush=True)
    if arguments.devices:
        found = doctor.with_torch(found)
    if arguments.json:
        print(json.dumps(found, indent=2))
        return 0
    if found["torch"] is not None:
        print(doctor_report.write_torch(found["torch"]))
    print(doctor_report.write_problems(found["problems"]))
    return 0


def _new_plugin(arguments: argparse.Namespace) -> int:
    from rlcore.cli.new_plugin.write import new_plugin, next_commands

    for file in new_plugin(arguments.name, kind=arguments.kind, path=arguments.path):
        print(file)
    print("\nnext:")
    for command in next_commands(arguments.name, kind=arguments.kind, path=arguments.path):
        print(f"  {command}")
    return 0
