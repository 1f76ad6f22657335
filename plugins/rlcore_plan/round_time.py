"""The time of a round from operations, bytes and the rates of the hardware; none of it is measured."""

from __future__ import annotations

import attrs

from rlcore_plan.batches import learned
from rlcore_plan.engines import Engines
from rlcore_plan.layout import TENSOR, WHOLE, ZERO2, Placement
from rlcore_plan.operations import Matrices
from rlcore_plan.planned_run import PlannedRun
from rlcore_plan.rates import Rates
from rlcore_plan.step_memory import Raw
from rlcore_plan.wire import Traffic, of_round, of_step
from rlcore_plan.workload import Workload

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
