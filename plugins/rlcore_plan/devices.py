"""The devices and rates that the command line names; light."""

from __future__ import annotations

import argparse

import attrs

from rlcore.errors import ConfigError
from rlcore_plan.rates import Rates
from rlcore_plan.sizes import parse_devices, parse_rate, parse_share, parse_size

ACCELERATOR = "cuda"


@attrs.frozen
class Devices:
    """The devices of a plan.

    Attributes:
        world: number of processes, each with a device.
        nodes: number of machines.
        kind: kind of the devices; None for that of this machine.
        limit: bytes of a device, and where they are from; None for those of this machine's device.
    """

    world: int
    nodes: int
    kind: str | None
    limit: tuple[int, str] | None


def read_devices(arguments: argparse.Namespace) -> Devices:
    """Return the devices that the arguments of `rlcore plan` name.

    Raises:
        ConfigError: they cannot be read, or contradict one another.
    """
    if arguments.devices is None:
        if arguments.nodes is not None:
            raise ConfigError(f"--nodes {arguments.nodes}: needs --devices, such as --devices 8x80GB")
        text = arguments.device_memory
        limit = None if text is None else (parse_size(text), "given (--device-memory)")
        return Devices(arguments.world or 1, 1, None, limit)
    for option, value in (("--world", arguments.world), ("--device-memory", arguments.device_memory)):
        if value is not None:
            raise ConfigError(
                f"{option} {value}: cannot be combined with --devices {arguments.devices}, which names the number of "
                f"devices and their memory: leave out {option}"
            )
    per_node, memory = parse_devices(arguments.devices)
    nodes = arguments.nodes or 1
    return Devices(nodes * per_node, nodes, ACCELERATOR, (memory, "given (--devices)"))


def read_rates(arguments: argparse.Namespace) -> Rates:
    """Return the rates of the hardware that the arguments of `rlcore plan` name, and defaults for others.

    Raises:
        ConfigError: one cannot be read, or there are no devices to which they belong.
    """
    given = {}
    for field in attrs.fields(Rates):
        text = getattr(arguments, field.name)
        if text is not None:
            read = parse_share if field.name in ("utilisation", "overlap") else parse_rate
            option = f"--{field.name.replace('_', '-')}"
            given[field.name] = read(option, text)
            if arguments.devices is None:
                raise ConfigError(f"{option} {text}: needs --devices, such as --devices 8x80GB")
    return Rates(**given)
