"""What an oracle receives: a trainer's loss in plain torch, which the kit compares with the trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
