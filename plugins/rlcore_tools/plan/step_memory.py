"""The memory of a training step: of a process with the whole model, and of a rank under a strategy.

Also in this file: the memory of passes without gradients: over the rows that a trainer scores, and to check a
sampler's weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import torch

from rlcore.protocols import SamplerTraits
from rlcore_tools.plan.engines import Engines
from rlcore_tools.plan.fake_tensors import LiveBytes
from rlcore_tools.plan.model_sizes import ModelSizes, find_blocks
from rlcore_tools.plan.planned_run import Draws, PlannedRun, checked, learned, pieces, rollouts
from rlcore_tools.plan.sizes import WHOLE

ACTIVATIONS, OTHERS = "activations kept for the backward pass", "the rest, such as logits"
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
class UpdateBytes:
    """The memory of one optimizer step of a process with the whole model, beyond the bytes held throughout.

    Attributes:
        kept: bytes that one forward pass keeps for the backward pass.
        most: largest number of bytes during the passes, gradients included.
        gradients: bytes of the gradients.
        step: largest number of bytes during the optimizer's step, gradients included.
        moments: bytes of the optimizer's state.
        holes: bytes that malloc keeps of freed tensors.
    """

    kept: int
    most: int
    gradients: int
    step: int = 0
    moments: int = 0
    holes: int = 0

    @property
    def top(self) -> int:
        """Return the largest number of bytes during the passes without gradients."""
        return self.most - self.present

    @property
    def present(self) -> int:
        """Return the bytes of the gradients at the peak: activations are freed while gradients are allocated."""
        return min(self.gradients, self.most - self.kept)

    def parts(self) -> dict[str, int]:
        """Return the bytes at the peak of the passes or of the step, by purpose."""
        parts = {"gradients": self.gradients}
        if self.most > self.step:
            parts = {"gradients" if self.present == self.gradients else "gradients by then": self.present}
            parts[ACTIVATIONS] = self.kept
        parts[OTHERS] = max(self.most, self.step) - sum(parts.values())
        return parts


@attrs.frozen
class Measured:
    """The memory of one training step of a rank, in bytes.

    Attributes:
        held: bytes held throughout, by purpose.
        phases: the phases in the order in which they run.
        draws: the memory of sampling, reused for a run with the same sampling options.
        host: bytes of the CPU's memory that `run.offload` takes.
    """

    held: dict[str, int]
    phases: tuple[Phase, ...]
    draws: Draws
    host: int = 0

    @property
    def worst(self) -> Phase:
        """Return the phase with the largest peak, holes included."""
        return max(self.phases, key=lambda phase: phase.taken)


@attrs.frozen
class Passes:
    """The memory of passes without gradients, in bytes.

    Attributes:
        scoring: name, bytes and holes of the passes over the rows that are scored.
        reference: bytes of those of a reference, which come first.
        checking: bytes of a pass over the rows whose log-probs are compared with those of what samples elsewhere.
    """

    scoring: tuple[tuple[str, int, int], ...] = ()
    reference: int = 0
    checking: int = 0


@attrs.frozen
class TensorPasses:
    """An optimizer step in which every process computes a part of each layer, of the rows of all (`run.shard=tp`).

    Attributes:
        update: the memory of the step of one process.
        summed: bytes of the hidden states that processes sum in one micro-batch, forwards and backwards.
        whole: bytes of the gradients of weights that every process has, which are averaged before the step.
    """

    update: UpdateBytes
    summed: int
    whole: int


@attrs.frozen
class Raw:
    """The memory of one training step of a process that holds the whole model, in bytes.

    Attributes:
        sizes: the model's weights.
        reference: bytes of a reference.
        rewards: bytes of reward models.
        rollouts: bytes of the rollouts of a round.
        trunk: bytes of cached outputs of frozen layers.
        draws: the memory of sampling.
        judging: name, bytes and holes of a pass of each reward model.
        update: the memory of an optimizer step.
        low: that of its passes if the linear layers of blocks have weights of 16 bits; None if they compute in 32.
        num_micro: micro-batches of an optimizer step.
        recomputes: whether activations are computed again in the backward pass.
        beside: bytes of frozen modules beside the policy's that are no reference.
        reads_rows: whether a process that divides the model reads its own rows of it, and not the whole model.
        passes: the passes without gradients on whole weights.
        by_block: those that complete one block of weights at a time.
        engines: what samples instead of the policy in this process; None if the policy does.
        tensor: the passes of `run.shard=tp`; None with another strategy.
        ahead: rounds that are sampled from copies of the weights that train, while the policy learns.
    """

    sizes: ModelSizes
    reference: int
    rewards: int
    rollouts: int
    trunk: int
    draws: Draws
    judging: tuple[tuple[str, int, int], ...]
    update: UpdateBytes
    low: UpdateBytes | None
    num_micro: int
    recomputes: bool
    beside: int = 0
    reads_rows: bool = False
    passes: Passes = Passes()
    by_block: Passes = Passes()
    engines: Engines | None = None
    tensor: TensorPasses | None = None
    ahead: int = 0

    @property
    def moments(self) -> int:
        """Return the bytes of the optimizer's state."""
        return self.update.moments


def passes_without_gradients(subject: PlannedRun, live: LiveBytes) -> tuple[Passes, Passes]:
    """Measure the passes on whole weights, and those that complete one block of weights at a time.

    Where autocast rounds weights that train, it keeps the 16-bit copies of all until a pass ends, and of one block if
    the weights are freed after each (`rlcore_shard.block_passes`).
    """
    whole = by_block = _measured(subject, live)
    is_divided = subject.world > 1 or subject.settings.run.shard != WHOLE
    if is_divided and subject.ranks.mixed_precision != "no":
        with _freed_by_block(subject):
            by_block = _measured(subject, live)
    return whole, by_block


def _measured(subject: PlannedRun, live: LiveBytes) -> Passes:
    compared = _checking(subject, live)
    return attrs.evolve(_scoring(subject, live), checking=compared)


@contextmanager
def _freed_by_block(subject: PlannedRun) -> Iterator[None]:
    """Free the copies that autocast has made of weights after each block."""

    def after(*_: object) -> None:
        torch.clear_autocast_cache()

    handles = [each.register_forward_hook(after) for each in find_blocks(subject.policy)]
    try:
        yield
    finally:
        for each in handles:
            each.remove()


def _checking(subject: PlannedRun, live: LiveBytes) -> int:
    """Return the bytes of the pass in which log-probs of what samples elsewhere are compared with the policy's."""
    serving = subject.serving
    if serving is None or not serving.checked:
        return 0
    batch = checked(subject, serving.checked, serving.checked_tokens)
    before = live.restart()
    with torch.no_grad():
        subject.policy.score(batch)
    return live.peak - before


def _scoring(subject: PlannedRun, live: LiveBytes) -> Passes:
    """Score rollouts as the trainer does before its updates, if it does."""
    policy, workload, settings = subject.policy, subject.workload, subject.settings
    is_float32 = subject.ranks.mixed_precision == "no" and next(policy.module.parameters()).dtype == torch.float32
    are_reused = (
        settings.gen.reused_logprobs
        and is_float32
        and settings.gen.is_plain
        and settings.model.get("sampling_dtype") is None
        and SamplerTraits(subject.chosen.sampler.build()).exact_logprobs
    )
    if not workload.num_scored or (are_reused and not workload.reference):
        return Passes()
    scored = rollouts(subject, subject.share(workload.num_sampled)) if workload.num_sampled else learned(subject)
    batch = pieces(subject, scored, workload.num_scored)[0]
    before = live.restart()
    with torch.no_grad():
        if workload.reference:
            policy.reference_score(batch)
        reference = live.peak - before
        if not are_reused:
            policy.score(batch, entropy=True)
    return Passes((("scoring", live.peak - before, live.holes),), reference)
