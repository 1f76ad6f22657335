"""The memory of a training step: of a process with the whole model, and of a rank under a strategy."""

from __future__ import annotations

import attrs

from rlcore_plan.draws import Draws
from rlcore_plan.engines import Engines
from rlcore_plan.model_sizes import ModelSizes

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
