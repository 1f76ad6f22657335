"""Adapters of `peft`, such as LoRA and IA3, in a model whose own weights stay frozen.

Also in this file: find the layers in which `peft` injected adapters, and restore a model's own layers.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import attrs
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlcore.errors import CheckpointError, ModelError
from rlcore_transformers.models.forward import predict
from rlcore_transformers.models.freezing import frozen_copy, vocabulary_size
from rlcore_transformers.models.hub import WEIGHTS_FILE, check_same_form
from rlcore_transformers.models.input_layout import InputLayout
from rlcore_transformers.models.speed.activations import probe_tokens


def adapter_layers(module: nn.Module) -> dict[str, Any]:
    """Return the layers of `module` that hold adapters or wrap other modules, by name, outer before nested ones."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import AuxiliaryTrainingWrapper

    kinds = BaseTunerLayer, AuxiliaryTrainingWrapper
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, kinds)}


def _outer_layers(module: nn.Module) -> dict[str, Any]:
    """Return the layers of `adapter_layers` that lie in no other one."""
    outer: dict[str, object] = {}
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
    memo: dict[int, object] = {
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
    memo: dict[int, object] = {id(tensor): _on_cpu(tensor) for tensor in _tensors(model)}
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


PREFIX = "base_model.model."
"""Prefix of every weight's name in files of peft, because a `PeftModel` holds the model under it."""


@attrs.frozen(eq=False)
class Adapters:
    """The adapter in the layers of a model, as `find_adapters` returns it.

    Attributes:
        model: the model with the adapter.
        name: peft's name of the adapter, usually `default`.
    """

    model: PreTrainedModel
    name: str

    @property
    def config(self) -> Any:
        """Return peft's configuration of the adapter."""
        return self.model.peft_config[self.name]

    @contextmanager
    def off(self) -> Iterator[None]:
        """Disable the adapter and set evaluation mode while the context is open."""
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
            for parameter, flag in flags:  # enabling sets requires_grad for all of the adapter
                parameter.requires_grad_(flag)
            for module in training:
                module.training = True

    def hold_all_change(self, layout: InputLayout) -> bool:
        """Return whether the model without the adapter equals the current model bit for bit, and will stay so.

        This holds for a new adapter that does not change any output yet. It does not hold for a trained adapter, for
        one whose initialisation changed the base weights, or if parameters train that are used without the adapter.
        """
        return self.change_nothing(layout) and self.leave_base_fixed(layout)

    @torch.no_grad()
    def change_nothing(self, layout: InputLayout) -> bool:
        """Return whether the model without the adapter equals the current model bit for bit."""
        batch = _probe(self.model)
        now, embedded = predict(self.model, layout, *batch)[0], self._embeddings()
        with self.off():
            logits = predict(self.model, layout, *batch)[0]
            return torch.equal(now, logits) and torch.equal(embedded, self._embeddings())

    def leave_base_fixed(self, layout: InputLayout) -> bool:
        """Return whether no parameter trains that is used without the adapter."""
        with self.off(), torch.enable_grad():
            logits = predict(self.model, layout, *_probe(self.model))[0]
            trained = [p for p in self.model.parameters() if p.requires_grad]
            moving = torch.autograd.grad(logits.sum(), trained, allow_unused=True) if logits.requires_grad else ()
        return all(gradient is None for gradient in moving)

    @torch.no_grad()
    def _embeddings(self) -> Tensor:
        """Return all embeddings, float[V, H], if an adapter changes them; else an empty tensor."""
        embeddings = self.model.get_input_embeddings()
        if not adapter_layers(embeddings):
            return torch.empty(0)
        whole: Tensor = embeddings(torch.arange(vocabulary_size(self.model), device=self.model.device))
        return whole

    def weights(self) -> dict[str, Tensor]:
        """Return the adapter's weights by peft's names."""
        from peft import get_peft_model_state_dict

        # With False, peft does not query the hub for a change of the vocabulary.
        found = get_peft_model_state_dict(self.model, adapter_name=self.name, save_embedding_layers=False)
        return cast("dict[str, Tensor]", found)

    def saved_parameters(self) -> set[int]:
        """Return the identities of the parameters that `weights` contains, or of all where it computes them."""
        from peft import get_peft_model_state_dict

        state = self.model.state_dict(keep_vars=True)
        found = get_peft_model_state_dict(
            self.model, state_dict=dict(state), adapter_name=self.name, save_embedding_layers=False
        )
        own = {id(weight) for weight in state.values()}
        saved = {id(weight) for weight in found.values()}
        return saved if own.issuperset(saved) else own

    def save(self, folder: Path) -> None:
        """Write the adapter in peft's format, so that peft can load it onto its base model."""
        folder.mkdir(parents=True, exist_ok=True)
        weights = {PREFIX + name: w.detach().cpu().contiguous().clone() for name, w in self.weights().items()}
        save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
        config = copy.copy(self.config)
        config.inference_mode = True
        for name, value in vars(config).items():
            if isinstance(value, set):  # a set's order differs between processes
                setattr(config, name, sorted(value))
        config.save_pretrained(folder)

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Load the weights of an adapter with the same names and shapes.

        Raises:
            CheckpointError: the weights cannot be read, or names or shapes differ.
        """
        from peft import set_peft_model_state_dict

        try:
            saved = load_file(folder / WEIGHTS_FILE, device="cpu")
        except (OSError, RuntimeError, SafetensorError) as error:
            raise CheckpointError(f"{folder}: the adapter cannot be read: {error}") from error
        found = {name.removeprefix(PREFIX): weight for name, weight in saved.items()}
        check_same_form(folder, "adapter weights", self.weights(), found)
        set_peft_model_state_dict(self.model, found, adapter_name=self.name)


def _probe(model: PreTrainedModel) -> tuple[Tensor, Tensor, Tensor]:
    tokens = probe_tokens(model, 6)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    return tokens, mask, mask & (torch.arange(6, device=tokens.device) > 1)


def find_adapters(model: PreTrainedModel) -> Adapters | None:
    """Return the adapter in the layers of `model`, or None.

    Raises:
        ModelError: the model has several adapters, or its adapter is merged or disabled.
    """
    configs: dict[str, Any] = getattr(model, "peft_config", None) or {}
    if not configs:
        return None
    if len(configs) > 1:
        raise ModelError(
            f"model: it carries {len(configs)} adapters, {', '.join(configs)}: keep the one to train "
            "(model.delete_adapter removes one), or merge them into the weights (peft's merge_and_unload)"
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
    """Keep the current policy as a reference: the model without its adapter if that is exact, else a frozen copy."""
    adapters = find_adapters(model)
    if adapters is not None and adapters.hold_all_change(layout):
        return adapters
    return frozen_copy(model)
