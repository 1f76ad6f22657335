"""The processes of a machine on which a server of the run has devices of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from rlcore.config import structure
from rlcore.plugins.choice import Chooser
from rlcore.plugins.registry import registries
from rlcore.plugins.switches import configured
from rlcore.plugins.wrappers import Wrapping
from rlcore.settings import TrainConfig
from rlcore_plan.devices import Devices
from rlcore_plan.serving import serving_of


def leave_to_servers(devices: Devices, values: Mapping[str, Any], where: str) -> Devices:
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
