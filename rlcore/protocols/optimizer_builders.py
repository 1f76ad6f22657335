"""Functions that build optimizers and learning-rate schedules."""

from __future__ import annotations

from typing import Any, Protocol

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class OptimizerBuilder(Protocol):
    """A function that builds an optimizer: any class of `torch.optim`, or a function of the same form.

    All arguments but the groups are passed by name: `lr`, and every option of the class that it was registered with
    (which must not define `lr`, `betas`, `eps` or `weight_decay`). `betas`, `eps` and `weight_decay` are passed if the
    user set them; otherwise the defaults of the signature apply. Setting one that is not in the signature is an error
    before the run begins.
    """

    def __call__(self, groups: list[dict[str, Any]], *, lr: float, **options: Any) -> Optimizer:
        """Build an optimizer of the trainable parameters.

        Args:
            groups: the matrices, and with `weight_decay` 0 the vectors, each as `params`; either group may be missing.
            lr: the learning rate after warm-up; the schedule writes the rate of each step into the optimizer's groups.
            options: those of `betas`, `eps` and `weight_decay` that were set, and the optimizer's own options.

        Returns:
            An optimizer whose steps depend only on the gradients and its `state_dict()`, so that a resumed run equals
            an uninterrupted one.

        Raises:
            ValueError: the options are incompatible; the run is refused with this message.
        """
        ...


class SchedulerBuilder(Protocol):
    """A function that builds a learning-rate schedule: most of those in `transformers` and torch, or one of your own.

    All arguments but the optimizer are passed by name: the options of the class it was registered with and, if they are
    in its signature, `num_warmup_steps` and `num_training_steps`. Without the former, the schedule has no warm-up. In a
    run without a known last step, `num_training_steps` is None if it has a default; otherwise the run is refused.
    """

    def __call__(self, optimizer: Optimizer, **options: Any) -> LRScheduler:
        """Build a schedule, which sets the learning rate of the first step immediately.

        Args:
            optimizer: what `OptimizerBuilder` returned; its groups hold the learning rate after warm-up.
            options: `num_warmup_steps` and `num_training_steps` (counted in optimizer steps), and the schedule's own
                options.

        Returns:
            A schedule whose `step()`, which takes no argument, is called after each optimizer step, and once more for
            each planned optimizer step that a step of the run leaves out.

        Raises:
            ValueError: the options are incompatible; the run is refused with this message.
        """
        ...
