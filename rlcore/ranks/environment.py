"""What a launcher's environment variables say: how processes meet, and which launches are refused."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Any

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


def check_processes(processes: int, world: int, cluster: Any = None) -> None:
    """Check the number of processes that a configuration asks for.

    Args:
        processes: `run.processes`.
        world: the number of processes there are.
        cluster: `run.cluster`.

    Raises:
        ConfigError: there is another number of processes than one that is not 1, or no launcher started this one.
    """
    asked = f"run.cluster = {cluster!r}" if cluster else f"run.processes = {processes}"
    if processes in (1, world) and not (cluster and world == 1 and "RLCORE_STARTED" not in os.environ):
        return
    if world > 1:
        raise ConfigError(f"run.processes = {processes}, but WORLD_SIZE = {world}: leave run.processes out")
    raise ConfigError(
        f"{asked}: rlcore.train runs in this process alone; start the program with torchrun "
        f"--nproc_per_node {processes} PROGRAM.py, or a configuration with rlcore train FILE.yaml"
    )


@functools.cache
def rendezvous_method() -> str:
    """Return the `init_method` of the process group: that of `env://`, apart for each attempt of a launcher.

    torchrun's store outlives a restart, and the addresses of processes that have ended are still in it.
    """
    from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # public all the same
    from torch.distributed.rendezvous import register_rendezvous_handler, rendezvous

    def meet(_url: str, **options: Any) -> Iterator[tuple[Store, int, int]]:
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        for store, rank, world in rendezvous("env://", **options):
            yield PrefixStore(f"rlcore/attempt/{attempt}", store), rank, world

    register_rendezvous_handler("rlcore", meet)
    return "rlcore://"
