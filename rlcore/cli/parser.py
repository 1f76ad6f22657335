"""The argument parser of the command line: the names of all commands, and the arguments of the chosen one.

The core's commands come from a table, so that they need no plugin. Plugins are loaded only if the first word is not a
command of the core, or for `--commands`, which lists all commands; `--help` therefore starts fast.

`rlcore --complete` completes words: `complete -o default -C "rlcore --complete" rlcore` turns it on, and for each
completion bash runs it with the command line in COMP_LINE and the position of the cursor in COMP_POINT.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast

from rlcore._version import __version__
from rlcore.cli.train import fill, find_trainer, trainer_names
from rlcore.errors import AmbiguousComponent, PluginError, RLCoreError, UnknownCommand, UnknownTrainer
from rlcore.plugins.builtin import COMMANDS
from rlcore.safe_text import visible

if TYPE_CHECKING:
    from rlcore.components import Component


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


def _fill_other(commands: Any, name: str, parser: argparse.ArgumentParser) -> Run:
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
