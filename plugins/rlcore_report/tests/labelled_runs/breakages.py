"""What breaks a labelled run beyond its options: observers that change it, as a defect in a program would."""

from __future__ import annotations

import copy
from typing import Any

import attrs
import torch


class StaleSampler:
    """Sampler that keeps the weights that the policy has before the first step."""

    def __init__(self, inner: Any, module: torch.nn.Module) -> None:
        self.inner, self.kept = inner, copy.deepcopy(module.state_dict())

    def __call__(self, policy: Any, prompts: Any, sampling: Any, **options: Any) -> Any:
        """Sample with the kept weights."""
        current = copy.deepcopy(policy.module.state_dict())
        policy.module.load_state_dict(self.kept)
        policy.version += 1
        options.pop("on_batch", None)
        try:
            return self.inner(policy, prompts, sampling, **options)
        finally:
            policy.module.load_state_dict(current)
            policy.version += 1


class Stale:
    """Observer that puts a `StaleSampler` in the place of the run's sampler."""

    def on_run_start(self, run: Any) -> None:
        """Replace the sampler."""
        run.sampling.sampler = StaleSampler(run.sampling.sampler, run.learner.module)


class Inverted:
    """Observer that turns the sign of the advantages, as a reward that counts errors would."""

    def on_rollout(self, run: Any, batch: Any) -> None:
        """Negate the advantages."""
        batch["advantages"].neg_()


class Shifted:
    """Observer that moves the mask of chosen tokens by one."""

    def on_rollout(self, run: Any, batch: Any) -> None:
        """Move the mask to the left."""
        batch.action_mask.copy_(batch.action_mask.roll(-1, 1))


class PromptsLearned:
    """Observer that inverts the masks of the training samples, so that prompts are learned instead of answers."""

    def on_run_start(self, run: Any) -> None:
        """Invert the masks; the first token is never chosen."""
        for i, sample in enumerate(run.samples):
            mask = tuple(place > 0 and not chosen for place, chosen in enumerate(sample.action_mask))
            run.samples[i] = attrs.evolve(sample, action_mask=mask)


@attrs.define
class Jolt:
    """Observer that adds noise to the weights after one step, as one far too large update would."""

    step: int
    size: float

    @torch.no_grad()
    def on_step(self, run: Any, metrics: Any) -> None:
        """Add the noise."""
        if run.step == self.step:
            torch.manual_seed(0)
            for weights in run.learner.module.parameters():
                weights.add_(torch.randn_like(weights) * self.size)


@attrs.define
class Sharpened:
    """Observer that scales the last normalisation up in each step, which lowers the entropy."""

    factor: float

    @torch.no_grad()
    def on_step(self, run: Any, metrics: Any) -> None:
        """Scale the gain."""
        norms = [m for m in run.learner.module.modules() if "norm" in type(m).__name__.lower()]
        norms[-1].weight.mul_(self.factor)


@attrs.define
class RateFactor:
    """Observer that multiplies the learning rate from one step on, as a schedule that is built for another length."""

    step: int
    factor: float

    def on_step(self, run: Any, metrics: Any) -> None:
        """Scale the rate."""
        if run.step == self.step:
            for updater in run.updaters:
                scheduler = updater.scheduler
                scheduler.base_lrs = [rate * self.factor for rate in scheduler.base_lrs]
                for group in updater.optimizer.param_groups:
                    group["lr"] *= self.factor
