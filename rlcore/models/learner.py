"""What policies and scorers made of a `transformers` model have in common: its device, its passes, its files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlcore.models.classifier import SequenceClassifier
from rlcore.models.forward import ActorCritic
from rlcore.models.peft.adapters import find_adapters
from rlcore.models.save_load import export_policy, load_policy, save_policy, save_start
from rlcore.models.shards import Shards
from rlcore.protocols import Learner

M = TypeVar("M", ActorCritic, SequenceClassifier)


class ModelLearner(Generic[M]):
    """A module around a model of `transformers` (`rlcore.protocols.Learner`).

    Args:
        module: the model with its heads, as its attribute `model`.
        tokenizer: the model's tokenizer.
        max_length: the largest number of tokens of a sequence; 0 if unlimited.

    Attributes:
        version: number of changes of the weights so far.
        trained: the module that runs with gradients: `module`, or a copy of it with divided weights.
    """

    def __init__(self, module: M, tokenizer: PreTrainedTokenizerBase, *, max_length: int) -> None:
        self.module: M = module
        self.trained: M = module
        self._shards: tuple[Shards, ...] = ()
        self.tokenizer, self.max_length, self.version = tokenizer, max_length, 0
        self._forward: Callable[..., Any] = module
        self._autocast: Callable[[], AbstractContextManager[Any]] = nullcontext

    @property
    def model(self) -> PreTrainedModel:
        """Return the model of `transformers`."""
        return self.module.model

    @property
    def device(self) -> torch.device:
        """Return the device of the parameters."""
        return self.model.device

    def to(self, device: torch.device) -> None:
        """Move the model and its heads to `device`."""
        self.module.to(device)

    def use_forward(self, forward: Callable[..., Any], *, autocast: Callable[[], AbstractContextManager[Any]]) -> None:
        """Score through `forward` instead of the module, and run all passes inside the context `autocast()` returns."""
        self._forward, self._autocast = forward, autocast

    def frozen_parameters(self) -> Mapping[str, nn.Parameter]:
        """Return the parameters beside `module`, such as those of a reference, that are needed without gradients."""
        return {}

    def use_shards(self, trained: M, *shards: Shards) -> None:
        """Divide the weights among processes: this one keeps `shards`, and runs `trained` with gradients.

        Args:
            trained: a copy of `module` with the divided weights.
            shards: the parts of the weights of `module`, then those of `frozen_parameters`.
        """
        self.trained, self._shards = trained, shards

    def gather(self) -> None:
        """Complete the weights of `module` on every process, if they are divided; collective."""
        for shards in self._shards:
            shards.gather()

    def drop(self) -> None:
        """Free the memory of the whole weights, if they are divided."""
        for shards in self._shards:
            shards.drop()

    @contextmanager
    def gathered(self, *, here: bool) -> Iterator[None]:
        """Complete the weights inside the context on the processes that pass `here`; collective.

        They lie in the memory of the CPU, unless they were complete before.
        """
        with ExitStack() as stack:
            for shards in self._shards[:1]:
                stack.enter_context(shards.gathered(here=here))
            yield

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the name and value of every weight of the model as `transformers` names them, one at a time.

        Every process iterates to the end, because divided weights are gathered one after another. Tied weights are
        yielded once. This is what samplers in other processes load.
        """
        if not self._shards:
            yield from ((name, weight.detach()) for name, weight in self.model.named_parameters())
            return
        for name, weight in self._shards[0].stream():
            if name.startswith("model."):
                yield name.removeprefix("model."), weight

    def parts(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the name of every weight of `module` and what this process keeps of it."""
        named = self.module.named_parameters()
        kept: Iterable[Tensor] = self._shards[0].parts if self._shards else self.module.parameters()
        for (name, _), part in zip(named, kept, strict=True):
            yield name, part.to_local() if isinstance(part, DTensor) else part.detach()

    def training_step(self) -> AbstractContextManager[Any]:
        """Return a context that does nothing: nothing is cached within a step."""
        return nullcontext()

    def save_pretrained(self, folder: Path) -> None:
        """Write model, tokenizer and heads; for a model with an adapter only the adapter, in the format of `peft`."""
        save_policy(folder, self.module, self.tokenizer)

    def load_pretrained(self, folder: Path) -> None:
        """Load the weights of model and heads from a folder that `save_pretrained` wrote.

        Raises:
            CheckpointError: the folder cannot be read, or contains another model or other heads.
        """
        self.gather()
        load_policy(folder, self.module)
        for shards in self._shards[:1]:
            shards.scatter()
        self.version += 1

    def export(self, folder: Path) -> None:
        """Write a model that plain `transformers` loads; an adapter is merged, and also saved in `adapter/`."""
        export_policy(folder, self.module, self.tokenizer)

    @property
    def saves_part(self) -> bool:
        """Return whether `save_pretrained` writes only an adapter, without its base model."""
        return find_adapters(self.model) is not None

    def save_start(self, folder: Path) -> None:
        """Write the base model before training, from which it can be rebuilt if the model has no name.

        Raises:
            ModelError: the adapter has changed weights of the base model.
        """
        save_start(folder, self.module, self.tokenizer)

    def note_start(self, folder: Path) -> None:
        """Set `folder` as the base model in the adapter's configuration, if no base model is set there."""
        adapters = find_adapters(self.model)
        if adapters is not None and not adapters.config.base_model_name_or_path:
            adapters.config.base_model_name_or_path = str(folder.resolve())


def gather_weights(learner: Learner) -> None:
    """Complete the weights of a learner on every process, if they are divided; every process calls this."""
    if isinstance(learner, ModelLearner):
        learner.gather()


def gathered_on(learner: Learner, *, here: bool) -> AbstractContextManager[None]:
    """Return a context in which the weights of a learner are complete on the processes that pass `here`."""
    return learner.gathered(here=here) if isinstance(learner, ModelLearner) else nullcontext()


def local_weights(learner: Learner) -> Iterator[tuple[str, Tensor]]:
    """Yield the name of every weight of a learner and what this process keeps of it."""
    yield from learner.parts() if isinstance(learner, ModelLearner) else learner.module.named_parameters()
