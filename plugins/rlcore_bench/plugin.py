"""Registration of the command `bench`; light, since every command imports it."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_commands(register: Register) -> None:
    """Register the command `bench`."""
    register(
        "bench",
        "rlcore_bench.bench_command:command",
        summary="compare two versions of a repository: learning, time, memory",
    )
