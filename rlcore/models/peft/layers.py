"""Find the layers in which `peft` injected adapters, and restore a model's own layers."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel


def adapter_layers(module: nn.Module) -> dict[str, Any]:
    """Return the layers of `module` that hold adapters or wrap other modules, by name, outer before nested ones."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import AuxiliaryTrainingWrapper

    kinds = BaseTunerLayer, AuxiliaryTrainingWrapper
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, kinds)}


def take_out(model: PreTrainedModel, *, merge: bool) -> None:
    """Replace the layers with adapters by the model's own layers, with the adapters merged into them or not."""
    taken: list[str] = []
    for name, layer in adapter_layers(model).items():
        if any(name.startswith(f"{outer}.") for outer in taken):
            continue
        taken.append(name)
        if hasattr(layer, "unload_and_optionally_merge_module"):  # peft's mark of layers that unload themselves
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
    """Return the model without its adapters, sharing every weight: loading weights into it changes the model's."""
    twin: PreTrainedModel = copy.deepcopy(model, {id(tensor): tensor for tensor in _tensors(model)})
    take_out(twin, merge=False)
    return twin


def merged_twin(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of the model on the CPU with its adapters merged into the weights; the model is not changed."""
    memo: dict[int, Any] = {id(tensor): _on_cpu(tensor) for tensor in _tensors(model)}
    twin: PreTrainedModel = copy.deepcopy(model, memo)
    _part(twin, [layer.get_base_layer() for layer in adapter_layers(twin).values() if hasattr(layer, "get_base_layer")])
    take_out(twin, merge=True)
    inputs, outputs = twin.get_input_embeddings(), twin.get_output_embeddings()
    if getattr(inputs, "weight", None) is not getattr(outputs, "weight", None):
        twin.config.tie_word_embeddings = False
        _part(twin, list(twin.modules()))  # weights that are no longer tied are loaded from the file by their own names
    return twin


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _on_cpu(tensor: Tensor) -> Tensor:
    copied = tensor.detach().to("cpu", copy=True)
    return nn.Parameter(copied, requires_grad=False) if isinstance(tensor, nn.Parameter) else copied


def _part(model: nn.Module, layers: Sequence[nn.Module]) -> None:
    """Untie the weights that `layers` share with other parts of the model."""
    uses = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
    for layer in layers:
        for name, parameter in list(layer.named_parameters(recurse=False)):
            if uses[id(parameter)] > 1:
                uses[id(parameter)] -= 1
                setattr(layer, name, nn.Parameter(parameter.detach().clone(), requires_grad=False))
