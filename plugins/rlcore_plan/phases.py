"""The memory of one training step, phase by phase, measured on fake tensors."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs
import torch

from rlcore.training import Updater
from rlcore.types import PolicyOutputs, Trajectories
from rlcore_plan.batches import learned, pieces, rollouts
from rlcore_plan.draws import Draws, draw
from rlcore_plan.live import LiveBytes, held, parameters_of
from rlcore_plan.planned_run import PlannedRun
from rlcore_plan.reward_models import scoring_pass

MANY = 10**6
"""Number of updates of the learning-rate schedule; it does not affect memory."""
TOKEN_BYTES = 8 + 1 + 1 + 7 * 4
"""Bytes of a rollout per token: int64 id, two bool masks, and seven float32 columns such as log-probs and rewards."""

TRUNK = "cached outputs of the frozen layers"
"""Name of the line whose size `model.trunk_cache_gb` bounds."""


@attrs.frozen
class Phase:
    """The memory of one phase.

    Attributes:
        name: the name shown in the report.
        parts: bytes by purpose, beyond the bytes held throughout.
        peak: largest number of bytes of all tensors during the phase.
        holes: further bytes that malloc keeps of freed tensors; 0 if unknown.
    """

    name: str
    parts: dict[str, int]
    peak: int
    holes: int

    @property
    def taken(self) -> int:
        """Return the peak with the bytes that malloc keeps of freed tensors."""
        return self.peak + self.holes


@attrs.frozen
class Measured:
    """The memory of one training step, in bytes.

    Attributes:
        held: bytes held throughout, by purpose.
        phases: the phases in the order in which they run.
        draws: the memory of sampling, reused for a run with the same sampling options.
    """

    held: dict[str, int]
    phases: tuple[Phase, ...]
    draws: Draws

    @property
    def worst(self) -> Phase:
        """Return the phase with the largest peak, holes included."""
        return max(self.phases, key=lambda phase: phase.taken)


def measure(subject: PlannedRun, live: LiveBytes, draws: Draws | None = None) -> Measured:
    """Run one training step on fake tensors; called inside `fake_tensors`.

    Args:
        subject: the planned run.
        live: counts the bytes of its tensors.
        draws: the memory of sampling if an earlier estimate measured it.
    """
    policy = subject.policy
    weights = parameters_of(policy.module)
    trained = [p for p in policy.module.parameters() if p.requires_grad]
    reference = getattr(policy, "reference", None)
    beside = parameters_of(reference) if isinstance(reference, torch.nn.Module) else []
    longest = subject.lengths.prompt + subject.settings.gen.max_new_tokens
    named = subject.optimizers.get(subject.optimizer)
    with no_garbage():
        updater = Updater(policy, subject.optimizer, subject.ranks, total_updates=MANY, optimization=named)
        draws = draws or draw(subject, live)
        judging = [
            (reward.name, *scoring_pass(reward, live, num=subject.share(subject.workload.num_sampled), length=longest))
            for reward in subject.rewards
        ]
        scoring = _scoring(subject, live)
        parts_of_update, moments, holes = update(live, updater, _passes(subject, live, updater))
        parts = {
            "parameters that train": held(*trained),
            "parameters that are frozen": held(*weights) - held(*trained),
            "reference": held(*weights, *beside) - held(*weights),
            "reward models": held(*(p for each in subject.rewards for p in parameters_of(each.scorer.module))),
            "optimizer": moments,
            "gradients exchanged between processes": held(*trained) if subject.world > 1 else 0,
            "rollouts": subject.workload.num_held * longest * TOKEN_BYTES,
            TRUNK: _trunk_cache(subject, live),
        }
    earlier = sum(parts.values())
    parts["buffers kept by sampling"] = draws.kept
    throughout = earlier + draws.kept  # allocated before the first update, but not before the first sampling
    phases = [Phase(each.name, each.parts, earlier + each.peak, each.holes) for each in draws.phases]
    phases += [Phase(f"reward {name}", {"one pass": size}, throughout + size, kept) for name, size, kept in judging]
    phases += [Phase("scoring", {"one pass": size}, throughout + size, kept) for size, kept in scoring]
    phases.append(Phase("update", parts_of_update, throughout + sum(parts_of_update.values()), holes))
    return Measured(parts, tuple(phases), draws)


@contextmanager
def no_garbage() -> Iterator[None]:
    """Collect garbage once and then disable the collector, so that only the code itself frees tensors."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def update(live: LiveBytes, updater: Updater, passes: Callable[[], int]) -> tuple[dict[str, int], int, int]:
    """Run one optimizer step.

    Args:
        live: counts the bytes of tensors.
        updater: the optimizer.
        passes: runs the forward and backward passes of at most two micro-batches; returns the bytes that one forward
            pass keeps.

    Returns:
        parts: bytes at the peak, by purpose.
        moments: bytes of the optimizer's state.
        holes: bytes that malloc keeps of freed tensors.
    """
    before = live.restart()
    kept = passes()
    most = live.peak - before
    gradients = held(*(p.grad for p in updater.parameters))
    live.restart()
    updater.step()
    moments = live.now - before
    step = live.peak - before - moments
    parts = {"gradients": gradients}
    if most > step:
        # Activations are freed while gradients are allocated, so not all may exist at the peak.
        present = min(gradients, most - kept)
        parts = {"gradients" if present == gradients else "gradients by then": present}
        parts["activations kept for the backward pass"] = kept
    parts["the rest, such as logits"] = max(most, step) - sum(parts.values())
    if live.heap is not None and live.heap.is_open:  # a second step, in the heap that the first has fragmented
        live.restart()
        passes()
        updater.step()
    return parts, moments, live.holes


def _passes(subject: PlannedRun, live: LiveBytes, updater: Updater) -> Callable[[], int]:
    """Return a function that runs the passes of the largest micro-batch, twice if the batch has more than one."""
    micro = pieces(subject, learned(subject), subject.workload.micro_batch_size)
    largest = max(micro, key=lambda piece: (int(piece.mask.sum()), piece.tokens.numel()))

    def passes() -> int:
        kept = 0
        for batch in [largest] * min(len(micro), 2):
            began = live.now
            outputs = _outputs(subject, batch)
            kept = live.now - began
            updater.backward(_loss(outputs))
            del outputs
        return kept

    return passes


def _outputs(subject: PlannedRun, batch: Trajectories) -> PolicyOutputs | torch.Tensor:
    """Return what a policy or a scorer computes of a micro-batch for its loss."""
    options = {"entropy": True} if subject.workload.entropy else {}
    outputs: PolicyOutputs | torch.Tensor = subject.policy.score(batch, **options)
    return outputs


def _loss(outputs: PolicyOutputs | torch.Tensor) -> torch.Tensor:
    """Return the sum of all outputs that a loss may depend on."""
    if isinstance(outputs, torch.Tensor):
        return outputs.sum()
    heads = [each for each in outputs.heads.values() if each.requires_grad]
    arrays = (outputs.logprobs, outputs.values, outputs.entropy, *heads)
    terms = [array.sum() for array in arrays if array is not None]
    return torch.stack(terms).sum()


def _trunk_cache(subject: PlannedRun, live: LiveBytes) -> int:
    """Return the bytes of the frozen trunk's outputs for the sequences of a step, which are cached during the step."""
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
    """Score rollouts as the trainer does before its updates.

    Returns:
        One pair, of the bytes of a scoring pass and the bytes that malloc keeps of freed tensors; an empty list if the
        trainer scores nothing.
    """
    policy, workload, settings = subject.policy, subject.workload, subject.settings
    is_float32 = subject.ranks.mixed_precision == "no" and next(policy.module.parameters()).dtype == torch.float32
    are_reused = (
        settings.gen.reused_logprobs
        and is_float32
        and settings.gen.is_plain
        and settings.model.get("sampling_dtype") is None
    )
    if not workload.num_scored or (are_reused and not workload.reference):
        return []
    scored = rollouts(subject, subject.share(workload.num_sampled)) if workload.num_sampled else learned(subject)
    batch = pieces(subject, scored, workload.num_scored)[0]
    before = live.restart()
    with torch.no_grad():
        if workload.reference:
            policy.reference_score(batch)
        if not are_reused:
            policy.score(batch, entropy=True)
    return [(live.peak - before, live.holes)]
