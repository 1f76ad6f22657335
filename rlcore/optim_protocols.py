"""What optimizers and learning-rate schedules must offer; `rlcore.protocols` has them with the others."""

from __future__ import annotations

from typing import Any, Protocol

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class OptimizerBuilder(Protocol):
    """A way to build an optimizer: any class of `torch.optim` as it is, or a function.

    Everything but the groups is given by name: `lr`, and every option of the class that it was registered with, which
    therefore has none called `lr`, `betas`, `eps` or `weight_decay`. The last three are given where the user set them.
    One that was set and is not in the signature is an error before the run begins; one that was not keeps the default
    of the signature.
    """

    def __call__(self, groups: list[dict[str, Any]], *, lr: float, **options: Any) -> Optimizer:
        """Build an optimizer over the parameters that train.

        Args:
            groups: the matrices, and with a `weight_decay` of 0 the vectors, each as `params`; a group may be missing.
            lr: the learning rate after warm-up; the schedule writes the rate of each step into the optimizer's groups.
            options: `betas`, `eps` and `weight_decay`, those that were set, and the optimizer's own options.

        Returns:
            An optimizer whose steps follow from the gradients and its `state_dict()` alone, so that a run goes on from
            a checkpoint as if it had never stopped.

        Raises:
            ValueError: options do not go together; the run is refused with what it says.
        """
        ...


class SchedulerBuilder(Protocol):
    """A way to build a learning-rate schedule: most of those in `transformers` and torch as they are, or a function.

    Everything but the optimizer is given by name: the options of the class it was registered with, and, where its
    signature has them, `num_warmup_steps` and `num_training_steps`. One without the first has no warm-up. One that has
    the second without a default is refused in a run whose last step is not known; one with a default is then given
    None.
    """

    def __call__(self, optimizer: Optimizer, **options: Any) -> LRScheduler:
        """Build a schedule, which sets the learning rate of the first step at once.

        Args:
            optimizer: what `OptimizerBuilder` returned; its groups hold the learning rate after warm-up.
            options: `num_warmup_steps`, `num_training_steps` (of the optimizer), and the schedule's own options.

        Returns:
            A schedule whose `step()`, which takes nothing, is called after each optimizer step.

        Raises:
            ValueError: options do not go together; the run is refused with what it says.
        """
        ...
