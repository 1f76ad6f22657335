"""The memory of one training step, phase by phase, measured on fake tensors."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import attrs
import torch

from rlcore.training import Updater
from rlcore.types import PolicyOutputs, Trajectories
from rlcore_plan.batches import learned, pieces, rollouts
from rlcore_plan.draws import Draws, draw
from rlcore_plan.live import LiveBytes, held, parameters_of
from rlcore_plan.planned_run import PlannedRun

MANY = 10**6
"""Updates of a run for its schedule, which takes no memory."""
TOKEN_BYTES = 8 + 1 + 1 + 7 * 4
"""What is kept of a token: its id, two masks, and seven columns (log-probs, values, KL, rewards and what follows)."""

TRUNK = "cached outputs of the frozen layers"
"""The line that `model.trunk_cache_gb` bounds."""


@attrs.frozen
class Phase:
    """The memory of one phase.

    Attributes:
        name: what the phase is called.
        parts: bytes it adds to what is held throughout, by what they are for.
        peak: bytes at its worst moment, all that is held included.
        holes: bytes that malloc keeps of freed tensors beyond that; 0 where it is not known.
    """

    name: str
    parts: dict[str, int]
    peak: int
    holes: int

    @property
    def taken(self) -> int:
        """Return the bytes at its worst moment, and what malloc keeps."""
        return self.peak + self.holes


@attrs.frozen
class Measured:
    """The memory of one training step, in bytes.

    Attributes:
        held: bytes held throughout, by what they are for.
        phases: in their order.
        draws: the memory of sampling, to be reused for a run that samples in the same way.
    """

    held: dict[str, int]
    phases: tuple[Phase, ...]
    draws: Draws

    @property
    def worst(self) -> Phase:
        """Return the phase that takes the most."""
        return max(self.phases, key=lambda phase: phase.taken)


def measure(subject: PlannedRun, live: LiveBytes, draws: Draws | None = None) -> Measured:
    """Run one training step on fake tensors; called inside `fake_tensors`.

    Args:
        subject: the run that is planned.
        live: counts bytes.
        draws: the memory of sampling, if it is known.
    """
    policy = subject.policy
    weights = parameters_of(policy.module)
    trained = [p for p in policy.module.parameters() if p.requires_grad]
    reference = getattr(policy, "reference", None)
    beside = parameters_of(reference) if isinstance(reference, torch.nn.Module) else []
    longest = subject.lengths.prompt + subject.settings.gen.max_new_tokens
    named = subject.optimizers.get(subject.optimizer)
    with _no_garbage():
        updater = Updater(policy, subject.optimizer, subject.ranks, total_updates=MANY, optimization=named)
        draws = draws or draw(subject, live)
        scoring = _scoring(subject, live)
        update, moments, holes = _update(subject, live, updater)
        parts = {
            "parameters that train": held(*trained),
            "parameters that are frozen": held(*weights) - held(*trained),
            "reference": held(*weights, *beside) - held(*weights),
            "optimizer": moments,
            "gradients exchanged between processes": held(*trained) if subject.world > 1 else 0,
            "rollouts": subject.workload.num_held * longest * TOKEN_BYTES,
            TRUNK: _remembered(subject, live),
        }
    earlier = sum(parts.values())
    parts["buffers kept by sampling"] = draws.kept
    throughout = earlier + draws.kept  # there when a model learns, though not yet when it first samples
    phases = [Phase(each.name, each.parts, earlier + each.peak, each.holes) for each in draws.phases]
    phases += [Phase("scoring", {"one pass": size}, throughout + size, kept) for size, kept in scoring]
    phases.append(Phase("update", update, throughout + sum(update.values()), holes))
    return Measured(parts, tuple(phases), draws)


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Collect garbage once and then disable the collector, so that only the code itself frees tensors."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _update(subject: PlannedRun, live: LiveBytes, updater: Updater) -> tuple[dict[str, int], int, int]:
    """Make one optimizer step, of two micro-batches where there are several.

    Returns:
        parts: what is there at the worst moment.
        moments: bytes of the optimizer's.
        holes: bytes that malloc then keeps of freed tensors.
    """
    micro = pieces(subject, learned(subject), subject.workload.micro_batch_size)
    largest = max(micro, key=lambda piece: (int(piece.mask.sum()), piece.tokens.numel()))
    before = live.restart()
    kept = _passes(subject, live, updater, [largest] * min(len(micro), 2))
    passes = live.peak - before
    gradients = held(*(p.grad for p in updater.parameters))
    live.restart()
    updater.step()
    moments = live.now - before
    step = live.peak - before - moments
    parts = {"gradients": gradients}
    if passes > step:
        there = min(gradients, passes - kept)  # activations go while gradients come, so not all may be there at once
        parts = {"gradients" if there == gradients else "gradients by then": there}
        parts["activations kept for the backward pass"] = kept
    parts["the rest, such as logits"] = max(passes, step) - sum(parts.values())
    if live.heap is not None and live.heap.is_open:  # another step finds the holes that the first has left
        live.restart()
        _passes(subject, live, updater, [largest] * min(len(micro), 2))
        updater.step()
    return parts, moments, live.holes


def _passes(subject: PlannedRun, live: LiveBytes, updater: Updater, micro: Sequence[Trajectories]) -> int:
    """Make forward and backward passes of micro-batches; return what one keeps in between."""
    kept = 0
    for batch in micro:
        began = live.now
        outputs = subject.policy.score(batch, entropy=subject.workload.entropy)
        kept = live.now - began
        updater.backward(_loss(outputs))
        del outputs
    return kept


def _loss(outputs: PolicyOutputs) -> torch.Tensor:
    """Add up all that an algorithm may learn from."""
    given = (outputs.logprobs, outputs.values, outputs.entropy, outputs.q_values, outputs.q_logprobs)
    terms = [array.sum() for array in given if array is not None]
    return torch.stack(terms).sum()


def _remembered(subject: PlannedRun, live: LiveBytes) -> int:
    """Count the bytes of what a frozen trunk makes of a step's sequences, which is kept until the step is over."""
    room = getattr(subject.chosen.architecture.options, "trunk_cache_gb", 0.0)
    if not room or all(parameter.requires_grad for parameter in subject.policy.module.parameters()):
        return 0
    num = subject.share(subject.workload.num_held or subject.workload.batch_size)
    batch = pieces(subject, learned(subject), 1)[0]
    with subject.policy.training_step(), torch.no_grad():
        before = live.now
        subject.policy.score(batch)
        kept = (live.now - before) * num // len(batch)
    return min(kept, int(room * 1e9))


def _scoring(subject: PlannedRun, live: LiveBytes) -> list[tuple[int, int]]:
    """Score rollouts as the trainer does before it learns from them, where it does; return what that takes.

    Twice: the bytes of a pass, and those that malloc keeps of freed tensors.
    """
    policy, workload, settings = subject.policy, subject.workload, subject.settings
    is_wide = subject.ranks.mixed_precision == "no" and next(policy.module.parameters()).dtype == torch.float32
    is_known = (
        settings.gen.reused_logprobs
        and is_wide
        and settings.gen.is_plain
        and settings.model.get("sampling_dtype") is None
    )
    if not workload.num_scored or (is_known and not workload.reference):
        return []
    batch = pieces(subject, rollouts(subject, subject.share(workload.num_sampled)), workload.num_scored)[0]
    before = live.restart()
    with torch.no_grad():
        if workload.reference:
            policy.reference_score(batch)
        if not is_known:
            policy.score(batch, entropy=True)
    return [(live.peak - before, live.holes)]
