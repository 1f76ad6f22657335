"""How a sampler that does not run the policy in the processes of a run gets its weights, and where it samples.

The options of such a sampler state it in a method `serving`, which `rlcore plan` calls.

Also in this file: the processes of a machine on which a server of the run has devices of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from rlcore.config import structure
from rlcore.errors import PluginError
from rlcore.plugins.choice import Chooser, Wrapping
from rlcore.plugins.metadata import configured
from rlcore.plugins.registry import registries
from rlcore.protocols import SamplerTraits
from rlcore.settings import TrainConfig
from rlcore.training.run_components import Chosen
from rlcore_tools.plan.sizes import Devices
from rlcore_tools.plan.workload import declared

WHOLE, STREAM, NOTHING = "whole", "stream", "nothing"
"""The weights that ranks complete for a sampler, where `run.shard` divides them."""


@attrs.frozen(kw_only=True)
class Serving:
    """Where a sampler samples, and what it needs of the ranks.

    A method of the options returns attributes by name; those that it leaves out have their default:

        @config
        class MyConfig:
            def serving(self) -> Mapping[str, Any]:
                return {"reads": "stream", "engines": len(self.urls)}

    Attributes:
        reads: the weights that ranks complete for it where these are divided: `whole`, `stream` (one tensor at a time)
            or `nothing`.
        engines: programs that sample, each with a copy of the policy's weights; 0 if their model is another.
        devices: devices of each of them; None if unknown, 0 if they are on CPUs.
        numbers: the devices of the machine of process 0 that they use, by number; None if they are on other devices
            than those of the run.
        named: whether these numbers are configured, so that the run's processes leave them out.
        sleeps: whether they free the memory of their devices while the policy learns.
        utilisation: share of a device's memory that they take; None for as much as they need.
        dtype: precision of their weights; None for the policy's.
        sends: `weights` if the whole weights reach them in each round, `trained` if only those that train do.
        copies: how often the weights that are sent are read in a round; None for once by each of them.
        chunk: bytes of whole weights that process 0 collects before it passes them on: in the CPU's memory for a file,
            or on its device if it keeps the weights.
        keeps: whether process 0 sends the weights itself, from a copy that it keeps in the CPU's memory; otherwise it
            writes them once.
        checked: rows whose log-probs each rank computes, one block of the model at a time, after the weights have
            changed.
        checked_tokens: new tokens of each of these rows.
        host_copy: whether each of them has a further copy of the weights in the CPU's memory.
    """

    reads: str = WHOLE
    engines: int = 0
    devices: int | None = None
    numbers: tuple[int, ...] | None = None
    named: bool = False
    sleeps: bool = False
    utilisation: float | None = None
    dtype: str | None = None
    sends: str = "weights"
    copies: int | None = None
    chunk: int = 0
    keeps: bool = False
    checked: int = 0
    checked_tokens: int = 0
    host_copy: bool = False

    def __attrs_post_init__(self) -> None:
        """Check the words; an unknown one is an error of the package that declares it."""
        if self.reads not in (WHOLE, STREAM, NOTHING) or self.sends not in ("weights", "trained"):
            raise PluginError(
                f"serving: reads = {self.reads!r} must be '{WHOLE}', '{STREAM}' or '{NOTHING}', and sends = "
                f"{self.sends!r} 'weights' or 'trained'"
            )

    def processes_of(self, devices: int) -> int:
        """Return the processes of a machine with so many devices: engines awake have the devices that are named."""
        if not self.named or not self.numbers or self.sleeps:
            return devices
        return min(self.numbers) if 0 < min(self.numbers) < devices else devices

    def shared(self, processes: int) -> bool:
        """Return whether an engine uses the device of one of so many processes on the machine of process 0."""
        return bool(self.numbers) and min(self.numbers or (processes,)) < processes


def serving_of(sampler: Any) -> tuple[Serving | None, tuple[str, ...]]:
    """Return what a sampler declares, with notes; None if the policy samples in the run's processes.

    Args:
        sampler: the choice of the sampler (`rlcore.plugins.choice.Choice`).

    Raises:
        PluginError: its method `serving` returns something else.
    """
    declare: Callable[[], Mapping[str, Any]] | None = getattr(sampler.options, "serving", None)
    name = sampler.component.name
    if declare is not None:
        return declared(Serving, declare(), f"{sampler.component}: serving", {}), ()
    if name == "default":
        return None, ()
    if SamplerTraits(sampler.component.target()).renew_weights is not None:
        note = (
            f"sampler '{name}' declares no `serving` (rlcore_tools.plan.serving): it is assumed to read the weights "
            "one tensor at a time, and what it takes of devices is left out"
        )
        return Serving(reads=STREAM), (note,)
    note = (
        f"sampling is planned as by sampler 'default' in this process: '{name}' declares no `serving` "
        "(rlcore_tools.plan.serving)"
    )
    return None, (note,)


def num_copies(chosen: Chosen, asynchronous: int) -> int:
    """Return how many rounds have a copy of the weights while the policy learns; none if the sampler has `submit`."""
    if not asynchronous:
        return 0
    traits = SamplerTraits(chosen.sampler.component.target())
    return asynchronous if traits.submit is None or traits.collect is None else 0


def leave_to_servers(devices: Devices, values: Mapping[str, object], where: str) -> Devices:
    """Return the devices on which processes of the run are planned: without those that a server of the run has.

    Args:
        devices: the devices that the command line names.
        values: the configuration.
        where: its name, for errors.
    """
    if devices.kind is None or devices.nodes > 1:
        return devices
    settings = structure(TrainConfig, values, where=where)
    with configured(settings.plugins.disable, settings.plugins.only):
        sampler = Chooser(where, Wrapping()).named(registries().samplers, settings.sampler, "sampler")
        serving, _ = serving_of(sampler)
    return devices if serving is None else attrs.evolve(devices, world=serving.processes_of(devices.world))
