"""Registration of the sampler `ray`, the command `ray` and `run.cluster`; light, since every command imports it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlcore import hookimpl
from rlcore.hookspecs import Register, RegisterServices, Services

if TYPE_CHECKING:
    from rlcore.protocols import Processes


@hookimpl
def register_samplers(register: Register) -> None:
    """Register the sampler `ray`."""
    register(
        "ray",
        "rlcore_engines.ray.ray_sampler:RaySampler",
        config="rlcore_engines.ray.config:RayConfig",
        summary="rollouts from actors of a Ray cluster, with the tokens of `default`",
    )


@hookimpl
def register_commands(register: Register) -> None:
    """Register the command `ray`."""
    register(
        "ray",
        "rlcore_engines.ray.launch_command:command",
        summary="run a command in several processes on the machines of a Ray cluster",
    )


@hookimpl
def register_services(register: RegisterServices) -> None:
    """Register what starts the processes of a run on a Ray cluster, if `run.cluster` names it."""
    register(Services(processes=_find_processes), options=["run.cluster"])


def _find_processes(cluster: object) -> Processes | None:
    if not cluster:
        return None
    from rlcore_engines.ray.cluster_config import is_ray
    from rlcore_engines.ray.cluster_processes import ClusterProcesses

    return ClusterProcesses(cluster) if is_ray(cluster) else None
