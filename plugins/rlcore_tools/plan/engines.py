"""What the programs that sample elsewhere take of their devices, and what reaches them in a round.

Also in this file: what samples elsewhere, as lines of the report and as JSON.
"""

from __future__ import annotations

from typing import Any

import attrs
import torch

from rlcore_tools.plan.fake_tensors import held
from rlcore_tools.plan.planned_run import PlannedRun
from rlcore_tools.plan.serving import Serving
from rlcore_tools.plan.sizes import write_count, write_size

ROOM = 0.9
"""Share of a device's memory that an engine is assumed to use, as vLLM does without `--gpu-memory-utilization`."""


@attrs.frozen
class Engines:
    """The programs that sample for a run, each with a copy of its policy's weights.

    Attributes:
        serving: what the sampler declares.
        name: the sampler.
        weights: bytes of the weights of one engine.
        row: bytes of the keys and values of one sequence of the longest length.
        rows: sequences that one engine samples in a round.
        sent: bytes of the weights that the ranks pass on in a round.
        memory: bytes of a device; 0 if unknown.
        is_shared: whether an engine uses the device of a rank.
        world: processes of the planned run.
    """

    serving: Serving
    name: str
    weights: int
    row: int
    rows: int
    sent: int
    memory: int = 0
    is_shared: bool = False
    world: int = 1

    @property
    def devices(self) -> int:
        """Return the devices of an engine: those declared, or so many that half of their room is left beside weights.

        Their number is then a power of two, as heads are divided.
        """
        if self.serving.devices is not None or not self.memory:
            return max(self.serving.devices or 1, 1)
        few = 1
        while 2 * self.weights > ROOM * self.memory * few:
            few *= 2
        return few

    @property
    def is_timed(self) -> bool:
        """Return whether the time of its sampling is estimated: neither of another model, nor on CPUs."""
        return bool(self.serving.engines) and self.serving.devices != 0

    @property
    def missing(self) -> int:
        """Return the bytes that a device of an engine lacks for the weights and one sequence; 0 if they fit."""
        return max(0, self.needed - round(self.room / self.devices)) if self.room and self.serving.devices else 0

    @property
    def room(self) -> float:
        """Return the bytes of all devices of an engine that it may take; 0 if unknown."""
        return self.devices * self.memory * (self.serving.utilisation or ROOM)

    @property
    def at_once(self) -> int:
        """Return the sequences that an engine samples at once: those for whose keys and values it has room."""
        if not self.room or not self.row:
            return max(self.rows, 1)
        return max(1, min(self.rows, int(self.room - self.weights) // self.row))

    @property
    def needed(self) -> int:
        """Return the bytes of a device for weights, and keys and values of the sequences that are sampled at once."""
        return (self.weights + self.at_once * self.row) // self.devices

    @property
    def taken(self) -> int:
        """Return the bytes of a device that it takes while it samples."""
        return round(self.share * self.memory) if self.share and self.memory else self.needed

    @property
    def share(self) -> float:
        """Return the share of a device's memory that it takes: that declared; 0 for as much as it needs.

        One that is beside a process of the run takes its usual share, whatever that process holds.
        """
        return self.serving.utilisation or (ROOM if self.is_shared else 0.0)

    @property
    def copies(self) -> int:
        """Return how often the weights that are sent are read in a round."""
        return self.serving.engines if self.serving.copies is None else self.serving.copies


def engines_of(subject: PlannedRun, memory: int, *, per_node: int, is_cpu: bool) -> Engines | None:
    """Return the engines of a run; None if the policy samples in its processes.

    Args:
        subject: the planned run.
        memory: bytes of a device; 0 if unknown.
        per_node: processes of a machine.
        is_cpu: whether the devices of the run are CPUs, which an engine does not share.
    """
    serving, name = subject.serving, subject.chosen.sampler.component.name
    if serving is None:
        return None
    if not serving.engines:
        return Engines(serving, name, 0, 0, 0, 0)
    model = getattr(subject.policy, "model", subject.policy.module)
    own = [each for each in model.parameters() if each.is_floating_point()]
    itemsize = getattr(torch, serving.dtype).itemsize if serving.dtype else own[0].itemsize
    moving = [each for each in subject.policy.module.parameters() if each.requires_grad]
    length = subject.lengths.prompt + subject.settings.gen.max_new_tokens
    return Engines(
        serving, name,
        weights=sum(each.numel() for each in own) * itemsize,
        row=length * _token_bytes(model.config, itemsize),
        rows=-(-subject.workload.num_sampled // serving.engines),
        sent=held(*(moving if serving.sends == "trained" else own)),
        memory=memory, is_shared=not is_cpu and serving.shared(per_node), world=subject.world,
    )  # fmt: skip


def _token_bytes(config: Any, itemsize: int) -> int:
    """Return the bytes of the keys and values of a token; 0 if the configuration of the model does not name them."""
    text = config.get_text_config()
    layers, heads = getattr(text, "num_hidden_layers", 0), getattr(text, "num_attention_heads", 0)
    width = getattr(text, "head_dim", None) or (getattr(text, "hidden_size", 0) // heads if heads else 0)
    return int(2 * layers * (getattr(text, "num_key_value_heads", None) or heads) * width * itemsize)


def line(name: str, size: int) -> str:
    """Return a line of the report: a purpose and its bytes."""
    return f"  {name:<52}{write_size(size):>10}"


def write_engines(engines: Engines) -> list[str]:
    """Return the lines of what samples elsewhere."""
    serving = engines.serving
    if not serving.engines:
        return [f"sampler '{engines.name}': its model and its devices are not part of the plan"]
    copies = "one copy" if serving.engines == 1 else f"{serving.engines} copies"
    lines = [f"sampler '{engines.name}': {copies} of the weights, {_where(engines)}"]
    lines.append(line("weights of one", engines.weights))
    if engines.row and engines.rows:
        rows = f"of {engines.at_once} of its {write_count(engines.rows, 'row')}"
        lines.append(line(f"keys and values {rows} at once", engines.at_once * engines.row))
    lines.append(line("needed of each of its devices", engines.needed))
    if engines.share:
        lines.append(line(f"taken of each, a share of {engines.share:g}", engines.taken))
    if engines.missing:
        lines.append(line("too much for each: give it more devices", engines.missing))
    if serving.sleeps:
        lines.append(line("in the CPU's memory while it sleeps", engines.weights))
    if serving.host_copy:
        lines.append(line("in the CPU's memory, a further copy of the policy", engines.sent))
    if serving.keeps:
        lines.append(line("in the CPU's memory of process 0, a copy to send", engines.sent))
    lines.append(line("passed on by process 0 in each round", engines.sent))
    lines.append(line(f"read by samplers, {write_count(engines.copies, 'time')}", engines.sent * engines.copies))
    return lines


def _where(engines: Engines) -> str:
    serving, devices = engines.serving, write_count(engines.devices, "device")
    if serving.devices == 0:
        return "on CPUs"
    if engines.is_shared:
        return f"on {devices} that processes of the run use too" + ", asleep while the policy learns" * serving.sleeps
    if serving.devices is None:
        return f"on devices of their own, assumed: {devices} for each" if engines.memory else "on devices of their own"
    if serving.numbers is not None:
        every = engines.world + engines.devices
        share = f"{100 * engines.devices / every:.0f} %"
        return f"on {devices} of its own, {share} of {every}; the run's processes have the rest"
    return f"on {devices} of its own" if serving.engines == 1 else f"on {devices} of its own for each"


def engines_as_json(engines: Engines) -> dict[str, Any]:
    """Return what samples elsewhere as an object of JSON, sizes in bytes."""
    return {
        "sampler": engines.name,
        "copies": engines.serving.engines,
        "weights": engines.weights,
        "rows": engines.rows,
        "rows_at_once": engines.at_once,
        "row": engines.row,
        "devices_of_each": engines.serving.devices,
        "devices_assumed": engines.devices,
        "shared": engines.is_shared,
        "sleeps": engines.serving.sleeps,
        "needed": engines.needed,
        "missing": engines.missing,
        "taken": engines.taken,
        "sent": engines.sent,
        "read": engines.sent * engines.copies,
    }
