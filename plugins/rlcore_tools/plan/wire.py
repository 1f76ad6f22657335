"""The bytes that a device sends in a round: between the devices of its machine, and to other machines.

A gather of S bytes among N devices sends each device's part to the others: (N - 1) / N x S bytes of a device, and as
much for a reduction to parts; a reduction to all devices is one after the other. On several machines of g devices, each
device exchanges 1 / g of what its machine does with the same device of the others (n machines: (n - 1) / n x S / g), as
rings over every network link of a machine do.

Also in this file: the time of a round from operations, bytes and the rates of the hardware; none of it is measured.
"""

from __future__ import annotations

import attrs

from rlcore_tools.plan.engines import Engines
from rlcore_tools.plan.model_sizes import Matrices
from rlcore_tools.plan.planned_run import PlannedRun, learned
from rlcore_tools.plan.serving import NOTHING
from rlcore_tools.plan.serving import WHOLE as ALL
from rlcore_tools.plan.sizes import FSDP, TENSOR, WHOLE, ZERO2, Placement, Rates
from rlcore_tools.plan.step_memory import Raw
from rlcore_tools.plan.strategies import LIVE_BYTES
from rlcore_tools.plan.workload import Workload

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
    columns = 4 if workload.value_head else 1 + 2 * workload.reference
    # In each pass, a row goes to one device.
    size = num_rows * length * (ID + COLUMN * columns + 1) * workload.passes / layout.world
    others = layout.world - layout.per_node
    parts = (size * (layout.per_node - 1) / layout.world, size * others / layout.world)
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


STEP_BYTES = 7
"""Reads and writes of AdamW for a weight: gradient, weight and two moments are read, the last three written."""
LARGEST = 1024
RENEWING = "weights to samplers"


@attrs.frozen
class Work:
    """What a device computes in a round, whatever the strategy.

    Attributes:
        workload: what the trainer samples and scores.
        sampled: sequences that the device samples.
        at_once: of them at once.
        prompt: tokens of a prompt.
        new: tokens of a response.
        cache: bytes of keys and values of all sequences that are sampled at once.
        steps: optimizer steps.
        learned: lengths of the sequences of an optimizer step.
        passes: forward passes without gradients over the sampled sequences.
        ahead: whether a round is sampled elsewhere while the policy learns from another.
    """

    workload: Workload
    sampled: int
    at_once: int
    prompt: int
    new: int
    cache: int
    steps: int
    learned: tuple[int, ...]
    passes: int
    ahead: bool = False


@attrs.frozen
class RoundTime:
    """The seconds of a round by phase, and what a device sends in it.

    Attributes:
        seconds: by phase; `exchange` is what computation does not hide.
        traffic: by purpose.
    """

    seconds: dict[str, float]
    traffic: tuple[Traffic, ...]

    @property
    def total(self) -> float:
        """Return the seconds of the round."""
        return sum(self.seconds.values())


def round_time(raw: Raw, matrices: Matrices, work: Work, layout: Placement, rates: Rates) -> RoundTime:
    """Return the time of a round.

    Args:
        raw: the memory and micro-batches of a process.
        matrices: the model's matrices.
        work: what the device computes.
        layout: the devices and the strategy.
        rates: the rates of the hardware.
    """
    length = work.prompt + work.new
    once = of_round(raw, layout, work.workload, num_rows=work.sampled * layout.world, length=length)
    each = of_step(raw, layout) if layout.world > 1 else []
    computing = rates.computing(matrices.update(work.learned, recomputes=raw.recomputes))
    stepped = raw.sizes.trained / layout.group
    if layout.strategy == TENSOR and raw.tensor is not None:  # the rows of all devices pass what is outside the blocks
        outside = (matrices.all - matrices.blocks) * sum(work.learned) * (layout.world - 1)
        computing += rates.computing(6 * outside)
        stepped = raw.tensor.update.gradients
    hiding = {WHOLE: computing * 2 / 3 / max(raw.num_micro, 1), ZERO2: 0.0}.get(layout.strategy, computing)
    meanwhile = sum(rates.sending(traffic.inside, traffic.between) for traffic in each if traffic.hidden)
    alone = sum(rates.sending(traffic.inside, traffic.between) for traffic in each if not traffic.hidden)
    exposed = meanwhile - rates.overlap * min(meanwhile, hiding) + alone
    stepping = STEP_BYTES * stepped / rates.memory_bandwidth
    rows = [length] * work.sampled
    seconds = {
        "sampling": sampling_time(raw, matrices, work, rates),
        "scoring": rates.computing(matrices.forward(rows) * work.passes),
        "update": work.steps * (computing + stepping),
        "exchange": work.steps * exposed + sum(rates.sending(traffic.inside, traffic.between) for traffic in once),
    }
    if raw.engines is not None and work.sampled:
        seconds[RENEWING] = _renewing(raw.engines, layout, rates)
    if work.ahead:  # a round is sampled while the policy learns
        learning = sum(seconds[name] for name in ("scoring", "update", "exchange"))
        seconds["sampling"] = max(0.0, seconds["sampling"] - learning)
    return RoundTime(seconds, (*once, *(traffic.times(work.steps) for traffic in each)))


def sampling_time(raw: Raw, matrices: Matrices, work: Work, rates: Rates) -> float:
    """Return the seconds of sampling: the prompts' pass, and for each token the larger of computing and reading.

    The devices of a server divide its weights, and compute and read as many times faster.
    """
    engines, sampled, at_once, cache, read = raw.engines, work.sampled, work.at_once, work.cache, matrices.rows_read
    if not sampled or (engines is not None and not engines.is_timed):
        return 0.0
    if engines is not None:
        sampled, at_once, cache = engines.rows, engines.at_once, engines.at_once * engines.row
        read *= engines.weights / max(raw.sizes.whole, 1)
        rates = attrs.evolve(
            rates, peak_flops=rates.peak_flops * engines.devices,
            memory_bandwidth=rates.memory_bandwidth * engines.devices,
        )  # fmt: skip
    prompts = rates.computing(matrices.forward([work.prompt] * sampled))
    full = work.prompt + work.new
    reading = (read + cache * (work.prompt + work.new / 2) / full) / rates.memory_bandwidth
    tokens = rates.computing(2 * matrices.all * at_once)
    return prompts + -(-sampled // at_once) * work.new * max(reading, tokens)


def _renewing(engines: Engines, layout: Placement, rates: Rates) -> float:
    """Return the seconds in which process 0 passes the weights on, and one server after another reads them."""
    reads = engines.copies * layout.world / engines.world + (not engines.serving.keeps)
    return rates.sending(0.0, engines.sent * reads)


def work_of(subject: PlannedRun, raw: Raw) -> Work:
    """Return what a device computes in a round of the planned run."""
    workload, settings, options = subject.workload, subject.settings, subject.chosen.trainer.options
    sampled = subject.share(workload.num_sampled) if workload.num_sampled else 0
    at_once = raw.draws.at_once.get("sampling", 1)
    cache = next((each.parts["key-value cache"] for each in raw.draws.phases if each.name == "sampling"), 0)
    epochs = [getattr(options, name, 1) for name in ("epochs", "iterations")]
    passes = max([each for each in epochs if isinstance(each, int)], default=1)
    steps = passes * -(-workload.num_sampled // workload.batch_size) if workload.num_sampled else 1
    scored = int(workload.reference) + int(bool(raw.passes.scoring) and not workload.reference)
    return Work(
        workload, sampled, at_once, subject.lengths.prompt if sampled else 0,
        settings.gen.max_new_tokens if sampled else 0, cache, steps,
        tuple(learned(subject).mask.sum(1).tolist()), scored if sampled else 0,
        ahead=bool(settings.run.asynchronous and subject.serving is not None),
    )  # fmt: skip


def larger(layout: Placement, largest: int = LARGEST) -> list[Placement]:
    """List layouts with more machines of the same devices, up to `largest` devices; the first is one device alone."""
    found, nodes = [attrs.evolve(layout, nodes=1, per_node=1)], 1
    while nodes * layout.per_node <= largest:
        found.append(attrs.evolve(layout, nodes=nodes))
        nodes *= 2
    return found
