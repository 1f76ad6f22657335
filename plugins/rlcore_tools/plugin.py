"""Registration of commands, observers and the upload to the hub; light, since every command imports it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlcore import hookimpl
from rlcore.hookspecs import Register, RegisterServices, Services

if TYPE_CHECKING:
    import inspect

    from rlcore.protocols import RunView, Uploader


@hookimpl
def register_commands(register: Register) -> None:
    """Register the commands `show`, `init`, `preview`, `convert`, `doctor`, `new-plugin`, `push` and `bench`."""
    register(
        "show",
        "rlcore_tools.show_command:command",
        summary="print the options of a component or section, or the wrappers of components",
    )
    register(
        "init",
        "rlcore_tools.init_command:command",
        summary="write a configuration file with every option as a comment",
    )
    register(
        "preview",
        "rlcore_tools.preview_command:command",
        summary="show the rows of a configuration as tokens: what is trained, sampled, dropped and truncated",
    )
    register(
        "convert",
        "rlcore_tools.conversion.convert_command:command",
        summary="turn a configuration of trlX or arguments of TRL into a configuration file",
    )
    register(
        "doctor",
        "rlcore_tools.doctor.doctor_command:command",
        summary="print versions, machine, plugins and problems for a bug report",
    )
    register(
        "new-plugin",
        "rlcore_tools.new_plugin.new_plugin_command:command",
        summary="create a working package as a starting point for your own plugin",
    )
    register(
        "push",
        "rlcore_tools.push_command:command",
        summary="upload the trained model of a run to the Hugging Face hub",
    )
    register(
        "bench",
        "rlcore_tools.bench.bench_command:command",
        summary="compare two versions of a repository: learning, time, memory",
    )


@hookimpl
def on_run_start(run: RunView) -> None:
    """Write the first rows of the run to its report, and log them at the level debug."""
    if run.ranks.is_main:
        from rlcore_tools.equal_rows import record_first_rows

        record_first_rows(run)


@hookimpl
def on_export(run: RunView, folder: Path) -> None:
    """Write the model card into the folder of a trained model."""
    from rlcore_tools.hub import write_card

    write_card(run, folder)


@hookimpl
def register_services(register: RegisterServices) -> None:
    """Register the upload to the hub, and what adapts objects and functions of TRL and `transformers`."""
    own = Services(uploader=_find_uploader, reward_arguments=_adapt_arguments, observer=_adapt_observer)
    register(own, options=["run.push_to_hub"], order="last")


def _find_uploader() -> Uploader:
    from rlcore_tools import hub

    return hub


def _adapt_arguments(
    parameters: Sequence[inspect.Parameter], arguments: Mapping[str, object]
) -> Mapping[str, object] | None:
    from rlcore_tools.trl_functions import adapted

    return adapted(parameters, arguments)


def _adapt_observer(observer: object) -> object | None:
    if "transformers.trainer_callback" not in sys.modules:  # where the class of every callback comes from
        return None
    from transformers import TrainerCallback

    if not isinstance(observer, TrainerCallback):
        return None
    from rlcore_tools.trainer_callbacks import CallbackObserver

    return CallbackObserver(observer)
