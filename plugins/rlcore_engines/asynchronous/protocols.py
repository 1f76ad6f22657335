"""What a sampler and a trainer offer for asynchronous rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

    from rlcore.protocols import Policy
    from rlcore.settings import SamplingConfig
    from rlcore.types import Prompt, Trajectories


@runtime_checkable
class ForeseeingTrainer(Protocol):
    """A trainer whose next rounds are known before they are due, and which may learn from samples of earlier weights.

    Such a trainer weighs tokens by the policy's probability over the sampler's (`is_correction` of `ppo` and `grpo`),
    or is right for samples of any distribution (`off_policy = True`, as `rft`).
    """

    def upcoming(self, steps: int) -> Sequence[tuple[Sequence[Prompt], int]]:
        """Return the rounds that the next `steps` steps pass to `run.rollout`, in the order of the calls.

        It is called between two yields and before the first, and changes nothing. With the rounds of more steps, those
        of fewer come first. A round that turns out otherwise is sampled when it is asked for.

        Args:
            steps: number of steps, at least 1.

        Returns:
            Of each call, the prompts and the argument `group`.
        """
        ...


@runtime_checkable
class AsynchronousSampler(Protocol):
    """A sampler that can begin a round and return at once.

    It is a `rlcore.protocols.Sampler` too, and the plain call samples as ever. A sampler whose workers have one copy
    of the weights sets an attribute `one_version = True`: all that was submitted is then collected, on all processes,
    at the end of every step, so that weights change between requests only. Otherwise several submissions, of different
    weights, may be under way. If it continues responses under way with new weights, its rows have a column
    `token_versions`, long[B, T], with the policy's `version` whose weights sampled each token.
    """

    def submit(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        sampling: SamplingConfig,
        *,
        generator: torch.Generator,
        row_seeds: Sequence[int],
        logit_mask: torch.Tensor | None = None,
    ) -> Any:
        """Begin to continue each prompt once with the present weights of the policy.

        Weights that change later have no effect on these rows: they are copied or shipped before this returns.

        Args:
            policy: the policy to sample from; its `version` names the weights.
            prompts: the B prompts of this process.
            sampling: the section `gen`.
            generator: for samplers that need one; equal seeds give an equal generator.
            row_seeds: a seed for each prompt, as of a plain call.
            logit_mask: as of a plain call; passed in runs that have one.

        Returns:
            A handle for `collect`.
        """
        ...

    def collect(self, handle: object) -> Trajectories:
        """Wait for what was submitted and return its rows, as a plain call with the same arguments would have.

        Called once for each handle, unless it raised: one that was collected before is an `RLCoreError`. What is
        submitted and never collected ends with `close`.

        Args:
            handle: what `submit` returned.
        """
        ...
