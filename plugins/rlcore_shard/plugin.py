"""Registration of the strategies, of checkpoints that all processes write, and of `rlcore export`; light."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlcore import hookimpl
from rlcore.hookspecs import Register, RegisterServices, Services

if TYPE_CHECKING:
    from rlcore.protocols import ParallelFiles, Processes


@hookimpl
def register_shardings(register: Register) -> None:
    """Register strategies of torch and DeepSpeed."""
    register(
        "fsdp",
        "rlcore_shard.fsdp:build_fsdp",
        summary="weights, gradients and optimizer state, with torch",
    )
    register(
        "zero2",
        "rlcore_shard.zero:build_zero2",
        summary="gradients and optimizer state, with DeepSpeed",
    )
    register("zero3", "rlcore_shard.zero:build_zero3", summary="as zero2, and the weights")
    register(
        "tp", "rlcore_shard.tensor_parallel:build_tp", summary="the layers themselves, by the model's plan, with torch"
    )


@hookimpl
def register_commands(register: Register) -> None:
    """Register the command that copies a checkpoint whose tensors are divided."""
    register(
        "export",
        "rlcore_shard.export_command:command",
        summary="copy a checkpoint of several processes with whole tensors",
    )


@hookimpl
def register_services(register: RegisterServices) -> None:
    """Register checkpoints of the format `dcp`, and the processes of this machine."""
    own = Services(parallel_files=_find_parallel_files, processes=_find_processes)
    register(own, options=["checkpoint.format", "run.processes"], order="last")


def _find_parallel_files() -> ParallelFiles:
    from rlcore_shard import parallel_files as parts

    return parts


def _find_processes(cluster: object) -> Processes | None:
    from rlcore_shard import local_processes as processes

    return None if cluster else processes
