"""The batch sizes and model heads that a trainer declares in its static methods `workload` and `rehearse`.

Also in this file: the workload of a trainer: as it declares it, or guessed from the names of its options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from rlcore.errors import PluginError
from rlcore.settings import BatchOptions

if TYPE_CHECKING:
    import torch


@attrs.frozen(kw_only=True)
class Workload:
    """The batch sizes and model heads that a trainer will use.

    A trainer states those that `default_workload` does not derive from its options, in a static method, called with
    its options and the number of its prompts (0 where that is unknown):

        @staticmethod
        def workload(config: MyConfig, num_prompts: int) -> Mapping[str, Any]:
            return {"num_scored": config.batch_size, "reference": True}

    Attributes:
        batch_size: sequences of one optimizer step, on all ranks together.
        group: so many consecutive sequences stay together in every batch, 2 for pairs.
        micro_batch_size: sequences of one forward pass with gradients on a rank; 0 takes all.
        micro_batch_tokens: tokens of one such pass at the most, padding counted; 0 sets no bound.
        num_sampled: prompts continued in a round, on all ranks together; 0 where it learns from samples alone.
        num_held: sequences kept between sampling and learning, on all ranks together.
        passes: how often each of them is learned from.
        num_scored: sequences of one forward pass without gradients on a rank; 0 where there are none.
        value_head: the policy has a value head.
        reference: the policy has a frozen reference.
        heads: what builds each further head of the policy (`rlcore.protocols.HeadBuilder`), by name.
        entropy: the loss contains the entropy of every chosen token's distribution.
        dropout: training uses the model's own dropout.
    """

    batch_size: int
    group: int = 1
    micro_batch_size: int = 0
    micro_batch_tokens: int = 0
    num_sampled: int = 0
    num_held: int = 0
    passes: int = 1
    num_scored: int = 0
    value_head: bool = False
    reference: bool = False
    heads: Mapping[str, Any] = attrs.field(factory=dict)
    entropy: bool = False
    dropout: bool = False


@attrs.frozen(kw_only=True, eq=False)
class Rehearsal:
    """The parts of a training step of a model that is no language model, which `rlcore plan` runs on fake tensors.

    A trainer of such models returns them by name from a static method, called with the model that its architecture
    built from configurations alone, its options, the whole configuration (a `rlcore.settings.TrainConfig`), and the
    number of processes:

        @staticmethod
        def rehearse(model: MyModel, config: MyConfig, settings: TrainConfig, world: int) -> Mapping[str, Any]: ...

    Attributes:
        frozen: modules that the run holds besides the model's `module`.
        sampling: by phase, `sampling` or `evaluation`, a function that allocates what the phase does.
        sampled_at_once: outputs that are sampled at once.
        loss: returns the loss of a rank's largest micro-batch, with gradients.
        num_passes: such passes of one optimizer step on a rank.
        num_held_bytes: bytes kept between sampling and learning.
        notes: assumptions of the estimate.
    """

    frozen: Sequence[torch.nn.Module] = ()
    sampling: Mapping[str, Callable[[], None]] = attrs.field(factory=dict)
    sampled_at_once: int = 1
    loss: Callable[[], torch.Tensor]
    num_passes: int = 1
    num_held_bytes: int = 0
    notes: tuple[str, ...] = ()


def default_workload(config: Any, num_prompts: int = 0) -> Workload:  # noqa: ARG001  (of a trainer's `workload`)
    """Return the workload that follows from options with the usual names.

    `rollouts` is the number of responses of a round, `batch_size` that of sequences of one optimizer step, the whole
    round where there is none; `dropout` says whether training uses it.

    Args:
        config: options of a trainer, a `rlcore.settings.BatchOptions`.
        num_prompts: ignored.
    """
    rollouts = getattr(config, "rollouts", 0)
    return Workload(
        batch_size=getattr(config, "batch_size", rollouts),
        micro_batch_size=config.micro_batch_size,
        micro_batch_tokens=config.micro_batch_tokens,
        num_sampled=rollouts,
        num_held=rollouts,
        dropout=getattr(config, "dropout", False),
    )


T = TypeVar("T")


def declared(cls: type[T], found: Any, name: str, base: Mapping[str, Any] | None = None) -> T:
    """Return what a component declares: attributes by name, or an object of the class.

    Args:
        cls: the class.
        found: what its method has returned.
        name: the component and the method, for errors.
        base: attributes that it may leave out.

    Raises:
        PluginError: it has returned another type, or attributes that the class does not have or lacks.
    """
    if isinstance(found, cls):
        return found
    make: Callable[..., T] = cls
    try:
        return make(**{**(base or {}), **found})
    except TypeError as error:
        raise PluginError(
            f"{name}() returned {found!r:.80}; it must return attributes of {cls.__module__}.{cls.__name__} by "
            f"name: {error}"
        ) from None


ASSUMED = ("batch_size", "micro_batch_size", "micro_batch_tokens")
"""Options with the usual names, from which the workload of a trainer is guessed that declares none."""


def workload_of(trainer: Any, options: Any, name: str, num_prompts: int) -> tuple[Workload, tuple[str, ...]]:
    """Return the workload that a trainer declares, or one guessed from the names of its options, with a note.

    Raises:
        PluginError: `workload` of the trainer returns no attributes of a workload.
    """
    declare = getattr(trainer, "workload", None)
    if declare is not None:
        base = attrs.asdict(default_workload(options)) if isinstance(options, BatchOptions) else {}
        return declared(Workload, declare(options, num_prompts), f"{name}: workload", base), ()
    values: Mapping[str, Any] = {} if options is None else attrs.asdict(options, recurse=False)
    sizes = {key: int(values[key]) for key in ASSUMED if isinstance(values.get(key), int)}
    samples = "prompts" in trainer.needs
    sampled = int(values.get("rollouts", sizes.get("batch_size", 32))) if samples else 0
    guess = Workload(
        batch_size=sizes.get("batch_size", sampled or 32),
        micro_batch_size=sizes.get("micro_batch_size", 0),
        micro_batch_tokens=sizes.get("micro_batch_tokens", 0),
        num_sampled=sampled,
        num_held=sampled,
        reference=bool(values.get("kl_coef")),
        num_scored=sampled if values.get("kl_coef") else 0,
    )
    return guess, (f"{name} declares no workload; assumed from the names of its options: {guess}",)
