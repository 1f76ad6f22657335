"""Registration of the sampler `ray` and of the command `ray`; light, since every command imports it."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_samplers(register: Register) -> None:
    """Register the sampler `ray`."""
    register(
        "ray",
        "rlcore_ray.ray_sampler:RaySampler",
        config="rlcore_ray.config:RayConfig",
        summary="rollouts from actors of a Ray cluster, with the tokens of `default`",
    )


@hookimpl
def register_commands(register: Register) -> None:
    """Register the command `ray`."""
    register(
        "ray",
        "rlcore_ray.launch_command:command",
        summary="run a command in several processes on the machines of a Ray cluster",
    )
