"""What an oracle receives: a trainer's loss in plain torch, which the kit compares with the trainer.

Also in this file: what the laws of samplers whose workers are other processes need to know of one, and can let happen
to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import attrs

if TYPE_CHECKING:
    from torch import Tensor, nn


@attrs.frozen
class Response:
    """A sampled response and its score.

    Attributes:
        tokens: token ids of the prompt and the response.
        action_mask: one boolean for each token, True for those of the response.
        ended: False if the response was truncated.
        score: what the reward function gives it.
    """

    tokens: tuple[int, ...]
    action_mask: tuple[bool, ...]
    ended: bool
    score: float


@attrs.define(eq=False)
class Recorded:
    """A run as an oracle receives it: what the trainer learned from, and plain models in float64.

    A row is the same object in `samples` or `rounds` and in `steps`.

    Attributes:
        options: every option of the trainer, defaults included.
        gen: the options of sampling, such as `temperature` and `max_new_tokens`.
        samples: the rows of the training data in their order, as the pipeline returns them, such as `Sample`; empty if
            the trainer needs none.
        rewards: the total reward of each of `samples`; empty if the trainer needs none.
        rounds: the responses of each call of `on_rollout`, in the order of its batch.
        steps: for each optimizer step, the rows of `samples` or `rounds` that `updater.accumulate` received, in its
            order; empty lists if the trainer does not call it.
        ends: for each step of the run, the number of optimizer steps made by its end.
        model: a plain model of `transformers` with the weights before the first step. Each yielded loss trains it, and
            `heads`, by one step of gradient descent.
        reference: another such model, which stays as it is.
        heads: the policy's weights that are not the model's, such as those of a value head, by name.
    """

    options: Mapping[str, Any]
    gen: Mapping[str, Any]
    samples: Sequence[Any]
    rewards: Sequence[float]
    rounds: list[list[Response]]
    steps: list[list[Any]]
    ends: list[int]
    model: nn.Module
    reference: nn.Module
    heads: dict[str, Tensor]


Oracle = Callable[[Recorded], Iterator[tuple[Any, Mapping[str, Any]]]]
"""A generator function: for each optimizer step it yields the loss and metrics that the trainer logs.

A metric of several optimizer steps of one step of the run is yielded with the last of them."""


Fault = Literal["dies", "late", "twice"]
"""What happens to an answer of a worker.

* `dies`: the worker ends before it answers.
* `late`: the answer comes when the sampler waits for it no more, or waits long.
* `twice`: the answer comes, and then again.
"""


def _nothing(_fault: Fault, _sampler: object) -> None:
    """Let nothing happen."""


@attrs.frozen(kw_only=True)
class Remote:
    """A sampler whose workers are other processes, as the author of its plugin describes it to the laws.

    Attributes:
        disturb: called as `disturb(fault, sampler)` before a round; lets one of `faults` happen to one of the answers
            in it.
        faults: those that it can let happen.
        draws_by_seeds: whether the workers draw tokens from the seeds of rows as the sampler `default` does, so that
            they sample the same.
        tolerance: largest difference of a log-prob from the policy's own, in nats.
    """

    disturb: Callable[[Fault, Any], None] = _nothing
    faults: tuple[Fault, ...] = ()
    draws_by_seeds: bool = True
    tolerance: float = 1e-5
