"""Find the layers that `peft` put adapters in, and put a model's own layers back."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel


def adapter_layers(module: nn.Module) -> dict[str, Any]:
    """Name the layers of `module` that hold adapters or stand before other modules; nested ones come after."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import AuxiliaryTrainingWrapper

    kinds = BaseTunerLayer, AuxiliaryTrainingWrapper
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, kinds)}


def take_out(model: PreTrainedModel, *, merge: bool) -> None:
    """Put a model's own layers back in the places of those with adapters, with these worked into them or without."""
    taken: list[str] = []
    for name, layer in adapter_layers(model).items():
        if any(name.startswith(f"{outer}.") for outer in taken):
            continue
        taken.append(name)
        if hasattr(layer, "unload_and_optionally_merge_module"):  # peft's way to mark layers that take themselves out
            own = layer.unload_and_optionally_merge_module(merge=merge, safe_merge=False, adapter_names=None)
        else:
            if merge:
                layer.merge()
            own = layer.get_base_layer()
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, own)
    for name in ("peft_config", "_hf_peft_config_loaded"):
        vars(model).pop(name, None)


def bare_twin(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model without its adapters, sharing every weight: what is loaded into it, the model has."""
    twin: PreTrainedModel = copy.deepcopy(model, {id(tensor): tensor for tensor in _tensors(model)})
    take_out(twin, merge=False)
    return twin


def merged_twin(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of the model on the CPU with its adapters worked into the weights; the model is not touched."""
    memo: dict[int, Any] = {id(tensor): _on_cpu(tensor) for tensor in _tensors(model)}
    twin: PreTrainedModel = copy.deepcopy(model, memo)
    _part(twin, [layer.get_base_layer() for layer in adapter_layers(twin).values() if hasattr(layer, "get_base_layer")])
    take_out(twin, merge=True)
    inputs, outputs = twin.get_input_embeddings(), twin.get_output_embeddings()
    if getattr(inputs, "weight", None) is not getattr(outputs, "weight", None):
        twin.config.tie_word_embeddings = False
        _part(twin, list(twin.modules()))  # what is not tied any more is read from the file, each by its own name
    return twin


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _on_cpu(tensor: Tensor) -> Tensor:
    copied = tensor.detach().to("cpu", copy=True)
    return nn.Parameter(copied, requires_grad=False) if isinstance(tensor, nn.Parameter) else copied


def _part(model: nn.Module, layers: Sequence[nn.Module]) -> None:
    """Give each of `layers` weights of its own where it shares them with another part of the model."""
    uses = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
    for layer in layers:
        for name, parameter in list(layer.named_parameters(recurse=False)):
            if uses[id(parameter)] > 1:
                uses[id(parameter)] -= 1
                setattr(layer, name, nn.Parameter(parameter.detach().clone(), requires_grad=False))
