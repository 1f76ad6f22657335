"""The memory of one training step of a model that is no language model, from the parts that its trainer declares."""

from __future__ import annotations

from collections.abc import Callable

from rlcore.training import Updater
from rlcore_tools.plan.heap import LiveBytes, held, parameters_of
from rlcore_tools.plan.model_sizes import sizes_of
from rlcore_tools.plan.phases import MANY, no_garbage, update
from rlcore_tools.plan.planned_run import Draw, Draws, PlannedRun
from rlcore_tools.plan.step_memory import Raw
from rlcore_tools.plan.workload import Rehearsal


def measure_rehearsal(subject: PlannedRun, rehearsal: Rehearsal, live: LiveBytes) -> Raw:
    """Run the parts of one training step on fake tensors; called inside `fake_tensors`.

    Args:
        subject: the planned run.
        rehearsal: the parts.
        live: counts the bytes of its tensors.
    """
    module = subject.policy.module
    weights = [each for part in (module, *rehearsal.frozen) for each in parameters_of(part)]
    named = subject.optimizers.get(subject.optimizer)
    with no_garbage():
        updater = Updater(subject.policy, subject.optimizer, subject.ranks, total_updates=MANY, optimization=named)
        draws = tuple(_draw(name, run, rehearsal.sampled_at_once, live) for name, run in rehearsal.sampling.items())
        found = update(live, updater, _passes(rehearsal, live, updater))
    return Raw(
        sizes=sizes_of(subject.policy, low=subject.ranks.mixed_precision == "bf16"),
        reference=0,
        rewards=0, rollouts=rehearsal.num_held_bytes, trunk=0, draws=Draws(draws, 0), judging=(),
        update=found, low=None, num_micro=rehearsal.num_passes,
        recomputes=bool(subject.settings.model.get("gradient_checkpointing")),
        beside=held(*weights) - held(*parameters_of(module)),
    )  # fmt: skip


def _draw(name: str, run: Callable[[], None], size: int, live: LiveBytes) -> Draw:
    before = live.restart()
    run()
    peak = live.peak - before
    return Draw(name, size, {"outputs and activations": peak}, peak, live.holes)


def _passes(rehearsal: Rehearsal, live: LiveBytes, updater: Updater) -> Callable[[], int]:
    """Return a function that runs the passes of the largest micro-batch, twice if a step has more than one."""

    def passes() -> int:
        kept = 0
        for _ in range(min(rehearsal.num_passes, 2)):
            began = live.now
            loss = rehearsal.loss()
            kept = live.now - began
            updater.backward(loss)
            del loss
        return kept

    return passes
