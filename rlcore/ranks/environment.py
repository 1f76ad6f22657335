"""What a launcher's environment variables say about the processes of a run, and which launches are refused."""

from __future__ import annotations

import os

from rlcore.errors import ConfigError, RanksError

SHARDING = {
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism configuration",
}
"""Variables by which `accelerate launch` chooses to shard the model; on a CPU accelerate itself ignores them."""
UNSET = {"", "0", "false", "no", "off", "n", "f"}
START = "start the script with torchrun --nproc_per_node N or accelerate launch, or unset WORLD_SIZE to run one process"


def environment_world() -> int:
    """Return the number of processes according to the environment.

    Raises:
        RanksError: the number cannot be read, or the launcher was to do what rlcore does not do.
    """
    world = os.environ.get("WORLD_SIZE", "1")
    if not world.isdecimal():
        raise RanksError(f"WORLD_SIZE = {world!r}: must be a whole number; {START}")
    for variable, name in SHARDING.items():
        if is_set(variable):
            raise RanksError(
                f"{variable} = {os.environ[variable]}: `accelerate launch` was told to shard the model by {name} in a "
                "way for which rlcore has no counterpart: start it with torchrun --nproc_per_node N, set "
                f"run.shard=fsdp to divide the model, and unset {variable}"
            )
    # `accelerate launch --cpu --num_processes N` starts one process without WORLD_SIZE, but names a master for several.
    if "WORLD_SIZE" not in os.environ and {"MASTER_ADDR", "ACCELERATE_MIXED_PRECISION"} <= os.environ.keys():
        raise RanksError(
            "accelerate launch was told to start several processes, but started only this one, as it does on a CPU: "
            "use torchrun --nproc_per_node N, or rlcore train FILE.yaml run.processes=N"
        )
    return int(world)


def is_set(variable: str) -> bool:
    """Return whether a variable of the environment is set to something that means yes."""
    return os.environ.get(variable, "").lower() not in UNSET


def check_processes(processes: int, world: int) -> None:
    """Check the number of processes that a configuration asks for.

    Args:
        processes: `run.processes`.
        world: the number of processes there are.

    Raises:
        ConfigError: there is another number of processes than one that is not 1.
    """
    if processes in (1, world):
        return
    if world > 1:
        raise ConfigError(f"run.processes = {processes}, but WORLD_SIZE = {world}: leave run.processes out")
    raise ConfigError(
        f"run.processes = {processes}: rlcore.train runs in this process alone; start the program with torchrun "
        f"--nproc_per_node {processes} PROGRAM.py, or a configuration with rlcore train FILE.yaml"
    )
