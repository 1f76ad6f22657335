"""Parsing and formatting of amounts of memory; light.

Also in this file: the devices and rates that the command line names; the rates of the hardware; the devices of a run,
and the strategy that divides its model among them.
"""

from __future__ import annotations

import argparse
import re

import attrs

from rlcore.errors import ConfigError
from rlcore.plugins.registry import registries
from rlcore.settings import RunConfig


@attrs.frozen
class Rates:
    """What the hardware does in a second; the defaults are those of an H100 with NVLink and 400 Gbit/s for each device.

    Attributes:
        peak_flops: operations of a device, dense in bfloat16.
        utilisation: share of them that matrix products reach while nothing is exchanged.
        memory_bandwidth: bytes of a device's memory.
        intra_bandwidth: bytes that a device sends to others of its machine.
        inter_bandwidth: bytes that a device sends to other machines.
        overlap: share of an exchange that computation hides, where it goes on meanwhile.
    """

    peak_flops: float = 989e12
    utilisation: float = 0.4
    memory_bandwidth: float = 3.35e12
    intra_bandwidth: float = 350e9
    inter_bandwidth: float = 45e9
    overlap: float = 0.5

    def computing(self, operations: float) -> float:
        """Return the seconds of so many operations."""
        return operations / (self.peak_flops * self.utilisation)

    def sending(self, inside: float, between: float) -> float:
        """Return the seconds in which a device sends so many bytes within its machine and to others."""
        return inside / self.intra_bandwidth + between / self.inter_bandwidth


UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([kmgt]?i?)b?\s*", re.IGNORECASE)


def parse_size(text: str, where: str = "") -> int:
    """Return the bytes of an amount such as `24GB`, `80GiB` or a plain number of bytes.

    Args:
        text: the amount.
        where: the option and its value, for the error.

    Raises:
        ConfigError: the text is not an amount of memory.
    """
    found = _SIZE.fullmatch(text)
    size = float(found[1]) * UNITS[found[2].lower()] if found and found[2].lower() in UNITS else 0.0
    if not 1 <= size < float("inf"):
        given = where or f"--device-memory {text!r}"
        raise ConfigError(f"{given}: must be an amount of memory, such as 24GB, 80GiB or 512MB")
    return int(size)


def write_size(size: int) -> str:
    """Return a number of bytes as text in GB, MB or kB."""
    if abs(size) >= 1e9:
        return f"{size / 1e9:.2f} GB"
    return f"{size / 1e6:.1f} MB" if abs(size) >= 1e5 else f"{size / 1e3:.1f} kB"


_RATES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_RATE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)(?:e(\d+))?\s*([kmgtp]?)(?:b|flops?)?(?:/s)?\s*", re.IGNORECASE)


def parse_rate(option: str, text: str) -> float:
    """Return a number for each second, from a text such as `989T`, `45GB/s` or `3.35e12`.

    Raises:
        ConfigError: the text is not a number above 0.
    """
    found = _RATE.fullmatch(text)
    rate = float(f"{found[1]}e{found[2] or 0}") * _RATES[found[3].lower()] if found else 0.0
    if not 0 < rate < float("inf"):
        raise ConfigError(f"{option} {text!r}: must be a finite number above 0 for each second, such as 989T or 45GB")
    return rate


def parse_share(option: str, text: str) -> float:
    """Return a share, from a text such as `0.4`.

    Raises:
        ConfigError: the text is not a number from 0 to 1.
    """
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1 or (share == 0 and option != "--overlap"):
        low = "from 0" if option == "--overlap" else "above 0 and"
        raise ConfigError(f"{option} {text!r}: must be a share {low} to 1, such as 0.4".replace("and to", "and up to"))
    return share


_DEVICES = re.compile(r"\s*(\d+)\s*[xX]\s*(\S.*)")


def parse_devices(text: str) -> tuple[int, int]:
    """Return the number of devices of a machine and the bytes of each, from a text such as `8x80GB`.

    Raises:
        ConfigError: the text has another form.
    """
    found = _DEVICES.fullmatch(text)
    if not found or not int(found[1]):
        raise ConfigError(
            f"--devices {text!r}: must be the number of devices of one machine, at least 1, and the memory of each, "
            "such as 8x80GB"
        )
    size = parse_size(found[2], f"--devices {text!r}")
    if found[2].strip().isdecimal() and size < 10**6:
        raise ConfigError(f"--devices {text!r}: has {size} bytes for each device: add a unit, such as {size}GB")
    return int(found[1]), size


def write_count(number: int, noun: str) -> str:
    """Return a number of things as text, such as `2 devices`."""
    return f"{number} {noun}{'s' * (number != 1)}"


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


WHOLE, FSDP, ZERO2, ZERO3, TENSOR = "none", "fsdp", "zero2", "zero3", "tp"
OURS = {"rlcore:none": WHOLE} | {f"rlcore-shard:{name}": name for name in (FSDP, ZERO2, ZERO3, TENSOR)}
"""The strategies whose memory and traffic are known, by full name."""


@attrs.frozen
class Placement:
    """The devices of a run, and what divides its model among them.

    Attributes:
        strategy: `none`, `fsdp`, `zero2`, `zero3` or `tp`.
        nodes: number of machines.
        per_node: devices of each machine, one for each process.
        within_node: whether the model is divided among the devices of a machine only.
        offload: whether parts and optimizer state are in the CPU's memory.
    """

    strategy: str = WHOLE
    nodes: int = 1
    per_node: int = 1
    within_node: bool = True
    offload: bool = False

    @property
    def world(self) -> int:
        """Return the number of processes."""
        return self.nodes * self.per_node

    @property
    def divides_weights(self) -> bool:
        """Return whether the strategy divides the weights, and not only gradients and optimizer state."""
        return self.strategy in (FSDP, ZERO3, TENSOR)

    @property
    def group(self) -> int:
        """Return the number of devices among which the model is divided; 1 if each has the whole."""
        if self.strategy == WHOLE:
            return 1
        return self.per_node if self.strategy == FSDP and self.within_node else self.world

    @property
    def option(self) -> str:
        """Return the options of `rlcore train` that choose the strategy."""
        words = [f"run.shard={self.strategy}"]
        if self.nodes > 1 and self.strategy != WHOLE:
            words.append(f"run.shard_within={'node' if self.strategy == FSDP and self.within_node else 'world'}")
        return " ".join(words + ["run.offload=true"] * self.offload)


def layout_of(run: RunConfig, nodes: int, per_node: int) -> Placement:
    """Return the layout that a configuration names.

    Raises:
        UnknownComponent: no strategy has this name.
        ConfigError: the plan does not know the strategy, or the options do not fit it.
    """
    component = registries().shardings.get(run.shard)
    strategy = OURS.get(component.qualified)
    if strategy is None:
        raise ConfigError(
            f"run.shard = '{run.shard}': rlcore plan does not know what {component} keeps on a device; it knows "
            f"{', '.join(OURS.values())}: plan with one of these, or measure the run (run.steps=1, perf/peak_memory_gb)"
        )
    if strategy != WHOLE and run.mixed_precision == "fp16":
        raise ConfigError(f"run.shard = '{run.shard}': run.mixed_precision = 'fp16' is not supported: use bf16")
    is_within = run.shard_within == "node"
    if strategy in (ZERO2, ZERO3, TENSOR) and is_within and nodes > 1:
        raise ConfigError(
            f"run.shard_within = 'node': run.shard = '{run.shard}' divides among all processes: set "
            "run.shard_within=world, or run.shard=fsdp"
        )
    if strategy in (WHOLE, TENSOR) and run.offload:
        raise ConfigError("run.offload: needs run.shard=fsdp, zero2 or zero3, whose parts it keeps in the CPU's memory")
    if strategy != WHOLE and run.asynchronous:
        raise ConfigError(
            f"run.asynchronous = {run.asynchronous}: needs the whole model on every process, and run.shard = "
            f"'{run.shard}' divides it: set one of them to its default"
        )
    return Placement(strategy, nodes, per_node, is_within, run.offload)


def every_layout(nodes: int, per_node: int, *, is_float32: bool = True) -> list[Placement]:
    """List the strategies that a run on these devices could choose.

    Args:
        nodes: number of machines.
        per_node: devices of each.
        is_float32: whether all weights that train are in 32 bits, as DeepSpeed's strategies require.
    """
    found = [Placement(WHOLE, nodes, per_node), Placement(FSDP, nodes, per_node)]
    if nodes > 1:
        found.append(Placement(FSDP, nodes, per_node, within_node=False))
    zero = (ZERO2, ZERO3) if is_float32 else ()
    return [*found, *(Placement(each, nodes, per_node, within_node=nodes == 1) for each in zero)]
