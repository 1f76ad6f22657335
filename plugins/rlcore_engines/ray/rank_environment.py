"""Ranks of a run on the machines of a cluster, and the environment variables that torchrun would give them; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs


@attrs.frozen
class Place:
    """Where an actor runs.

    Attributes:
        machine: id of the machine.
        host: its address, at which the other machines reach it.
        port: a free port there.
        gpus: the GPUs there that Ray has given to the actor.
    """

    machine: str
    host: str
    port: int
    gpus: tuple[str, ...] = ()


def order(places: Sequence[Place]) -> list[int]:
    """Return the indices of places by rank: those on one machine follow one another, the machine of the first first."""
    machines = list(dict.fromkeys(place.machine for place in places))
    return sorted(range(len(places)), key=lambda index: (machines.index(places[index].machine), index))


def environments(places: Sequence[Place], *, run_id: str, attempt: int, restarts: int) -> list[dict[str, str]]:
    """Return the variables of each rank.

    Every rank of a machine sees all GPUs of the run there, in the order of the ranks, as torch expects: rank i of the
    machine computes on the i-th.

    Args:
        places: of the ranks, in the order that `order` returns.
        run_id: the same for all ranks and attempts.
        attempt: how often the run has been started before.
        restarts: most times that it is started again.
    """
    machines = list(dict.fromkeys(place.machine for place in places))
    by_machine: Mapping[str, list[int]] = {
        machine: [rank for rank, place in enumerate(places) if place.machine == machine] for machine in machines
    }
    common = {
        "WORLD_SIZE": len(places), "ROLE_WORLD_SIZE": len(places), "GROUP_WORLD_SIZE": len(machines),
        "ROLE_NAME": "default", "MASTER_ADDR": places[0].host, "MASTER_PORT": places[0].port,
        "TORCHELASTIC_RUN_ID": run_id, "TORCHELASTIC_RESTART_COUNT": attempt, "TORCHELASTIC_MAX_RESTARTS": restarts,
        "TORCHELASTIC_USE_AGENT_STORE": False, "RLCORE_STARTED": 1,
    }  # fmt: skip
    found = []
    for rank, place in enumerate(places):
        local = by_machine[place.machine]
        own = {
            "RANK": rank, "ROLE_RANK": rank, "LOCAL_RANK": local.index(rank), "LOCAL_WORLD_SIZE": len(local),
            "GROUP_RANK": machines.index(place.machine),
        }  # fmt: skip
        gpus = [gpu for each in local for gpu in places[each].gpus]
        seen = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
        found.append({name: str(value) for name, value in (common | own | seen).items()})
    return found
