"""The bytes that a device sends in a round: between the devices of its machine, and to other machines.

A gather of S bytes among N devices sends each device's part to the others: (N - 1) / N x S bytes of a device, and as
much for a reduction to parts; a reduction to all devices is one after the other. On several machines of g devices, each
device exchanges 1 / g of what its machine does with the same device of the others (n machines: (n - 1) / n x S / g), as
rings over every network link of a machine do.
"""

from __future__ import annotations

import attrs

from rlcore_plan.layout import FSDP, TENSOR, WHOLE, ZERO2, Placement
from rlcore_plan.serving import NOTHING
from rlcore_plan.serving import WHOLE as ALL
from rlcore_plan.step_memory import Raw
from rlcore_plan.strategies import LIVE_BYTES
from rlcore_plan.workload import Workload

ID, COLUMN = 4, 4
"""Bytes of a token's id and of a float32 column in the exchange of a round."""


@attrs.frozen
class Traffic:
    """Bytes that a device sends for one purpose.

    Attributes:
        purpose: what is exchanged.
        inside: bytes within the machine.
        between: bytes to other machines.
        hidden: whether computation goes on meanwhile.
    """

    purpose: str
    inside: float
    between: float
    hidden: bool = False

    @property
    def total(self) -> float:
        """Return all bytes."""
        return self.inside + self.between

    def times(self, number: float) -> Traffic:
        """Return the bytes of so many exchanges."""
        return attrs.evolve(self, inside=self.inside * number, between=self.between * number)


def gathered(size: float, layout: Placement, group: int) -> tuple[float, float]:
    """Return the bytes that a device sends within its machine and to others in a gather of `size` bytes.

    Args:
        size: bytes of the whole tensors.
        layout: the devices.
        group: the devices among which they are divided: one machine's, or all.
    """
    local = min(group, layout.per_node)
    nodes = group // local
    inside = size * (local - 1) / local
    return inside, size * (nodes - 1) / nodes / local


def of_step(raw: Raw, layout: Placement) -> list[Traffic]:
    """List what a device exchanges in one optimizer step.

    Args:
        raw: the memory and the micro-batches of a process.
        layout: the devices and the strategy.
    """
    sizes, number, micro = raw.sizes, layout.group, raw.num_micro
    everyone = layout.world
    gradients = gathered(sizes.trained, layout, everyone)
    if layout.strategy == WHOLE:
        return [Traffic("gradients", 2 * gradients[0], 2 * gradients[1], hidden=True)]
    if layout.strategy == ZERO2:
        return [
            Traffic("gradients", *gradients).times(2 * micro),  # DeepSpeed reduces them to all devices
            Traffic("weights after the step", *gradients),
        ]
    if layout.strategy == FSDP:
        blocks = sum(each.whole for each in sizes.blocks)
        reduced = sum(each.reduced for each in sizes.blocks) + sizes.rest.reduced
        weights = gathered(2 * blocks + sizes.rest.whole, layout, number)
        found = [
            Traffic("weights, forwards and backwards", *weights, hidden=True).times(micro),
            Traffic("gradients", *gathered(reduced, layout, number), hidden=True).times(micro),
        ]
        copies = everyone // number
        if copies > 1:
            between = 2 * reduced / number * (copies - 1) / copies
            found.append(Traffic("gradients between machines", 0.0, between, hidden=True))
        return found
    if layout.strategy == TENSOR and raw.tensor is not None:
        states = Traffic("hidden states of every layer", *gathered(2 * raw.tensor.summed, layout, number))
        averaged = gathered(2 * raw.tensor.whole, layout, number)
        return [states.times(micro), Traffic("gradients of what is whole everywhere", *averaged)]
    passes = 1 if sizes.whole <= LIVE_BYTES else 2  # the weights of a small model stay between the passes
    weights = gathered(passes * sizes.whole, layout, everyone)
    return [
        Traffic("weights, forwards and backwards", *weights, hidden=True).times(micro),
        Traffic("gradients", *gradients, hidden=True).times(micro),
    ]


def of_round(raw: Raw, layout: Placement, workload: Workload, *, num_rows: int, length: int) -> list[Traffic]:
    """List what a device exchanges once in a round: whole weights to sample and score with, and the round's rows.

    Args:
        raw: the memory of a process.
        layout: the devices and the strategy.
        workload: what the trainer samples and scores.
        num_rows: rows of the round, on all devices.
        length: tokens of a row.
    """
    found = _weights(raw, layout, workload, num_rows=num_rows) if layout.divides_weights else []
    if not workload.num_sampled or layout.world == 1:
        return found
    if workload.is_scattered(layout.world):  # each row goes to one device in each pass
        columns = 4 if workload.value_head else 1 + 2 * workload.reference
        size = num_rows * length * (ID + COLUMN * columns + 1) * workload.passes / layout.world
        others = layout.world - layout.per_node
        parts = (size * (layout.per_node - 1) / layout.world, size * others / layout.world)
    else:
        columns = 1 + workload.value_head + 2 * workload.reference
        parts = gathered(num_rows * length * (ID + COLUMN * columns + 1), layout, layout.world)
    return [*found, Traffic("rows of the round", *parts)]


def _weights(raw: Raw, layout: Placement, workload: Workload, *, num_rows: int) -> list[Traffic]:
    """List the gathers of whole weights in a round: to sample with or to pass on, to check, and to score with."""
    found, engines, sizes = [], raw.engines, raw.sizes
    is_used = workload.num_sampled or workload.num_scored
    reads = engines.serving.reads if engines is not None and workload.num_sampled else ALL
    whole = Traffic("", *gathered(sizes.completed(layout.strategy), layout, layout.group))
    if is_used and reads != NOTHING:
        purpose = "whole weights to sample with" if reads == ALL else "weights to pass on, one tensor at a time"
        found.append(attrs.evolve(whole, purpose=purpose))
    passes = -(-num_rows // (layout.world * workload.num_scored)) if workload.num_scored else 0
    if reads != ALL and engines is not None:
        checks = max(engines.serving.engines, 1) if raw.passes.checking else 0
        further = {"weights to check, one block at a time": checks}
        further |= {"weights to score with, one block at a time": passes if raw.passes.scoring else 0}
        found += [attrs.evolve(whole.times(number), purpose=name) for name, number in further.items() if number]
    reference = sum(each.size for each in sizes.reference)
    if reference and passes:
        sent = gathered(passes * reference, layout, layout.group)
        found.append(Traffic("reference, one block at a time", *sent))
    return found
