"""The memory of one training step of a model that is no language model, from the parts that its trainer declares."""

from __future__ import annotations

from collections.abc import Callable

from rlcore.training import Updater
from rlcore_plan.draws import Draw, Draws
from rlcore_plan.live import LiveBytes, held, parameters_of
from rlcore_plan.phases import MANY, TRUNK, Measured, Phase, no_garbage, update
from rlcore_plan.planned_run import PlannedRun
from rlcore_plan.workload import Rehearsal


def measure_rehearsal(subject: PlannedRun, rehearsal: Rehearsal, live: LiveBytes) -> Measured:
    """Run the parts of one training step on fake tensors; called inside `fake_tensors`.

    Args:
        subject: the planned run.
        rehearsal: the parts.
        live: counts the bytes of its tensors.
    """
    module = subject.policy.module
    weights = [each for part in (module, *rehearsal.frozen) for each in parameters_of(part)]
    trained = [p for p in module.parameters() if p.requires_grad]
    named = subject.optimizers.get(subject.optimizer)
    with no_garbage():
        updater = Updater(subject.policy, subject.optimizer, subject.ranks, total_updates=MANY, optimization=named)
        draws = tuple(_draw(name, run, rehearsal.sampled_at_once, live) for name, run in rehearsal.sampling.items())
        parts_of_update, moments, holes = update(live, updater, _passes(rehearsal, live, updater))
    parts = {
        "parameters that train": held(*trained),
        "parameters that are frozen": held(*weights) - held(*trained),
        "optimizer": moments,
        "gradients exchanged between processes": held(*trained) if subject.world > 1 else 0,
        "rollouts": rehearsal.num_held_bytes,
        TRUNK: 0,
    }
    throughout = sum(parts.values())
    phases = [Phase(each.name, each.parts, throughout + each.peak, each.holes) for each in draws]
    phases.append(Phase("update", parts_of_update, throughout + sum(parts_of_update.values()), holes))
    return Measured(parts, tuple(phases), Draws(draws, 0))


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
