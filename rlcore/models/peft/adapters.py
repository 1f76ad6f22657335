"""Train adapters of `peft` in the layers of a model whose own weights stay as they are: LoRA, IA3 and their kind."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import attrs
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from rlcore.errors import CheckpointError, ModelError
from rlcore.models.forward import predict
from rlcore.models.freezing import frozen_copy, vocabulary_size
from rlcore.models.hub import WEIGHTS_FILE
from rlcore.models.inputs import InputLayout
from rlcore.models.peft.layers import adapter_layers
from rlcore.models.speed.exactness import probe_tokens
from rlcore.models.weights import check_same_form

PREFIX = "base_model.model."
"""What peft writes before every name, because a `PeftModel` holds the model under it."""


@attrs.frozen(eq=False)
class Adapters:
    """Stand for the adapter that the layers of a model carry; `find_adapters` finds it in the model itself.

    Attributes:
        model: the model it is in.
        name: what peft calls the adapter, mostly `default`.
    """

    model: PreTrainedModel
    name: str

    @property
    def config(self) -> Any:
        """Return peft's configuration of it."""
        return self.model.peft_config[self.name]

    @contextmanager
    def off(self) -> Iterator[None]:
        """Let the model be what it is without the adapter, and in evaluation mode, while the context is open."""
        layers = list(adapter_layers(self.model).values())
        flags = [(p, p.requires_grad) for layer in layers for p in layer.parameters()]
        training = [module for module in self.model.modules() if module.training]
        for layer in layers:
            layer.enable_adapters(False)
        self.model.eval()
        try:
            yield
        finally:
            for layer in layers:
                layer.enable_adapters(True)
            for parameter, flag in flags:  # peft has all of an adapter train again, also what did not
                parameter.requires_grad_(flag)
            for module in training:
                module.training = True

    def hold_all_change(self, layout: InputLayout) -> bool:
        """Tell whether the model without the adapter is, and will stay, what the model is now, to the last bit.

        It is so of a new adapter that changes nothing yet. Not of a trained one, nor of one whose making rewrote the
        weights beneath it, nor where anything else trains that takes part without it.
        """
        tokens = probe_tokens(self.model, 6)
        mask = torch.ones_like(tokens, dtype=torch.bool)
        batch = tokens, mask, mask & (torch.arange(6, device=tokens.device) > 1)
        with torch.no_grad():
            now, read = predict(self.model, layout, *batch)[0], self._embeddings()
        with self.off(), torch.enable_grad():
            logits = predict(self.model, layout, *batch)[0]
            trained = [p for p in self.model.parameters() if p.requires_grad]
            moving = torch.autograd.grad(logits.sum(), trained, allow_unused=True) if logits.requires_grad else ()
            same = torch.equal(now, logits) and torch.equal(read, self._embeddings())
        return same and all(gradient is None for gradient in moving)

    @torch.no_grad()
    def _embeddings(self) -> Tensor:
        """Return what is read for every token of the vocabulary, float[V, H], if an adapter has a part in that."""
        embeddings = self.model.get_input_embeddings()
        if not adapter_layers(embeddings):
            return torch.empty(0)
        whole: Tensor = embeddings(torch.arange(vocabulary_size(self.model), device=self.model.device))
        return whole

    def weights(self) -> dict[str, Tensor]:
        """Name what is saved of the adapter, as peft names it."""
        from peft import get_peft_model_state_dict

        # Told so, peft does not ask the hub whether the vocabulary has grown.
        found = get_peft_model_state_dict(self.model, adapter_name=self.name, save_embedding_layers=False)
        return cast("dict[str, Tensor]", found)

    def save(self, folder: Path) -> None:
        """Write the adapter as peft does, so that peft loads it onto the model it was made for."""
        folder.mkdir(parents=True, exist_ok=True)
        weights = {PREFIX + name: w.detach().cpu().contiguous().clone() for name, w in self.weights().items()}
        save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
        config = copy.copy(self.config)
        config.inference_mode = True
        for name, value in vars(config).items():
            if isinstance(value, set):  # its order would be another in the next process
                setattr(config, name, sorted(value))
        config.save_pretrained(folder)

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Take the weights of an adapter of the same form.

        Raises:
            CheckpointError: they cannot be read, or are of another form.
        """
        from peft import set_peft_model_state_dict

        try:
            saved = load_file(folder / WEIGHTS_FILE, device="cpu")
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{folder}: the adapter cannot be read: {error}") from error
        found = {name.removeprefix(PREFIX): weight for name, weight in saved.items()}
        check_same_form(folder, "adapter weights", self.weights(), found)
        set_peft_model_state_dict(self.model, found, adapter_name=self.name)


def find_adapters(model: PreTrainedModel) -> Adapters | None:
    """Return the adapter in the layers of `model`, None where there is none.

    Raises:
        ModelError: there are several, or the one there is has been merged or turned off.
    """
    configs: dict[str, Any] = getattr(model, "peft_config", None) or {}
    if not configs:
        return None
    if len(configs) > 1:
        raise ModelError(
            f"model: it carries {len(configs)} adapters, {', '.join(configs)}: leave the one that is to be trained "
            "(model.delete_adapter), or work them into the weights (peft's merge_and_unload)"
        )
    layers = adapter_layers(model).values()
    if not layers:
        raise ModelError(f"model: its adapter, {next(iter(configs.values())).peft_type}, lies in none of its layers")
    if any(getattr(layer, "merged", False) for layer in layers):
        raise ModelError("model: its adapter is merged into its weights: call unmerge_adapter() before")
    if any(layer.disable_adapters for layer in layers):
        raise ModelError("model: its adapter is turned off: call enable_adapter_layers() or enable_adapters() before")
    return Adapters(model, next(iter(configs)))


def keep_reference(model: PreTrainedModel, layout: InputLayout) -> PreTrainedModel | Adapters:
    """Keep the policy as it is now: its adapter, to be turned off, where that is exact; else a copy that stays."""
    adapters = find_adapters(model)
    if adapters is not None and adapters.hold_all_change(layout):
        return adapters
    return frozen_copy(model)
