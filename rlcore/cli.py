"""The command line: light, so that it answers at once, and guarded, so that it answers while every plugin is broken."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rlcore import __version__
from rlcore.errors import RLCoreError

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code: 0 well, 1 an error that was said, 2 wrong usage, 130 interrupted."""
    arguments = _parser().parse_args(argv)
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
    train.set_defaults(command=_train)

    listing = commands.add_parser(
        "list-plugins",
        help="list installed plugins, what they bring, and what is wrong with them",
        description="List installed plugins, what they bring, and what is wrong with them.",
    )
    listing.add_argument("--json", action="store_true", help="print JSON, with a schema number")
    listing.add_argument("--check", action="store_true", help="exit with 1 unless every plugin is ok")
    listing.set_defaults(command=_list_plugins)

    show = commands.add_parser(
        "show",
        help="print the options of a component or a section",
        description="Print the options of a component, or of a section of the configuration file.",
    )
    show.add_argument("name", metavar="NAME", help="a component (ppo, rlcore-ppo:ppo) or a section (gen, run, ...)")
    show.add_argument("--json", action="store_true", help="print JSON, with a schema number")
    show.set_defaults(command=_show)
    return parser


def _train(arguments: argparse.Namespace) -> int:
    from rlcore.config import load_yaml, merge, parse_overrides

    values = merge(load_yaml(arguments.file), parse_overrides(arguments.overrides))
    where = f"{arguments.file} + command line" if arguments.overrides else str(arguments.file)
    from rlcore.door import train_from_config

    train_from_config(values, where)
    return 0


def _list_plugins(arguments: argparse.Namespace) -> int:
    from rlcore.discovery import State
    from rlcore.listing import plugins_as_json, print_plugins
    from rlcore.registry import all_registries

    discovery = all_registries().discovery
    if arguments.json:
        print(plugins_as_json(discovery))
    else:
        print_plugins(discovery)
    return int(arguments.check and any(plugin.state is not State.OK for plugin in discovery.plugins))


def _show(arguments: argparse.Namespace) -> int:
    from rlcore.listing import find_options, options_as_json, print_options

    found = find_options(arguments.name)
    if arguments.json:
        print(options_as_json(found))
    else:
        for each in found:
            print_options(each)
    return 0
