"""What policies and scorers made of a `transformers` model have in common: its device, its passes, its files."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlcore.models.classifier import SequenceClassifier
from rlcore.models.forward import ActorCritic
from rlcore.models.peft.adapters import find_adapters
from rlcore.models.save_load import export_policy, load_policy, save_policy, save_start

M = TypeVar("M", ActorCritic, SequenceClassifier)


class ModelLearner(Generic[M]):
    """A module around a model of `transformers` (`rlcore.protocols.Learner`).

    Args:
        module: the model with its heads, as its attribute `model`.
        tokenizer: the model's tokenizer.
        max_length: the largest number of tokens of a sequence; 0 if unlimited.

    Attributes:
        version: number of changes of the weights so far.
    """

    def __init__(self, module: M, tokenizer: PreTrainedTokenizerBase, *, max_length: int) -> None:
        self.module: M = module
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
        load_policy(folder, self.module)
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
