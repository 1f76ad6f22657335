"""What a launcher's environment variables say about the processes of a run, and which launches are refused."""

from __future__ import annotations

import os

from rlcore.errors import ConfigError, RanksError
from rlcore.ranks.launched_sharding import refuse_sharding

START = "start the script with torchrun --nproc_per_node N or accelerate launch, or unset WORLD_SIZE to run one process"


def environment_world() -> int:
    """Return the number of processes according to the environment.

    Raises:
        RanksError: the number cannot be read, or the launcher was to do what rlcore does not do.
    """
    world = os.environ.get("WORLD_SIZE", "1")
    if not world.isdecimal():
        raise RanksError(f"WORLD_SIZE = {world!r}: must be a whole number; {START}")
    refuse_sharding()
    # `accelerate launch --cpu --num_processes N` starts one process without WORLD_SIZE, but names a master for several.
    if "WORLD_SIZE" not in os.environ and {"MASTER_ADDR", "ACCELERATE_MIXED_PRECISION"} <= os.environ.keys():
        raise RanksError(
            "accelerate launch was told to start several processes, but started only this one, as it does on a CPU: "
            "use torchrun --nproc_per_node N, or rlcore train FILE.yaml run.processes=N"
        )
    return int(world)


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
