"""Find the layers in which `peft` injected adapters, and restore a model's own layers."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from torch import Tensor, nn
from transformers import PreTrainedModel


def adapter_layers(module: nn.Module) -> dict[str, Any]:
    """Return the layers of `module` that hold adapters or wrap other modules, by name, outer before nested ones."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import AuxiliaryTrainingWrapper

    kinds = BaseTunerLayer, AuxiliaryTrainingWrapper
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, kinds)}


def _outer_layers(module: nn.Module) -> dict[str, Any]:
    """Return the layers of `adapter_layers` that lie in no other one."""
    outer: dict[str, Any] = {}
    for name, layer in adapter_layers(module).items():
        if not any(name.startswith(f"{each}.") for each in outer):
            outer[name] = layer
    return outer


def take_out(model: PreTrainedModel, *, merge: bool) -> None:
    """Replace the layers with adapters by the model's own layers, with the adapters merged into them or not."""
    for name, layer in _outer_layers(model).items():
        own = _own_layer(layer, merge=merge)
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, own)
    for name in ("peft_config", "_hf_peft_config_loaded"):
        vars(model).pop(name, None)


def _own_layer(layer: Any, *, merge: bool) -> nn.Module:
    """Return the model's own layer that an adapter's layer holds, with the adapter merged into it or not."""
    if hasattr(layer, "unload_and_optionally_merge_module"):  # peft's mark of layers that unload themselves
        own: nn.Module = layer.unload_and_optionally_merge_module(merge=merge, safe_merge=False, adapter_names=None)
        return own
    if merge:
        layer.merge()
    return cast("nn.Module", layer.get_base_layer())


def merged_layer(layer: nn.Module, whole: Mapping[int, Tensor]) -> nn.Module:
    """Return the model's own layer with the adapter merged into it; the layer is not changed.

    Args:
        layer: a layer with an adapter.
        whole: identity of each of its parameters → the values to merge.
    """
    memo: dict[int, Any] = {
        id(each): nn.Parameter(whole[id(each)].detach().clone(), requires_grad=False) for each in layer.parameters()
    }
    return _own_layer(copy.deepcopy(layer, memo), merge=True)


def merged_weights(model: PreTrainedModel, weights: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and values of a model's own weights, with the adapters merged into them, one layer at a time.

    Tied weights are yielded once, or under each of their names if an adapter ends the tie, as `merged_twin` does.

    Args:
        model: the model, whose parameters may be empty.
        weights: each of its parameters and the value to use.
    """
    layers = _outer_layers(model)
    missing = {name: {id(each) for each in layer.parameters()} for name, layer in layers.items()}
    known: dict[str, dict[int, Tensor]] = {name: {} for name in layers}
    inputs, outputs = (
        getattr(each, "weight", None) for each in (model.get_input_embeddings(), model.get_output_embeddings())
    )
    is_tied = inputs is outputs and not any(id(inputs) in each for each in missing.values())
    outside: dict[int, list[str]] = {}
    for name, each in model.named_parameters(remove_duplicate=is_tied):
        if not any(name.startswith(f"{layer}.") for layer in layers):
            outside.setdefault(id(each), []).append(name)
    for parameter, whole in weights:
        yield from ((name, whole) for name in outside.get(id(parameter), ()))
        for name in [each for each, ids in missing.items() if id(parameter) in ids]:
            known[name][id(parameter)] = whole
            missing[name].discard(id(parameter))
            if not missing[name]:
                for own, value in merged_layer(layers[name], known.pop(name)).named_parameters():
                    yield f"{name}.{own}", value.detach()


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
