"""Find a decoder's blocks by its structure, freeze the bottom ones, and copy models with frozen parameters shared.

For an encoder-decoder, the blocks are those of the decoder, and the encoder counts as running before them.

Also in this file: weights of a model that processes divide, as they are in its files until they are divided.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlcore.config import ConfigOnly, evolve
from rlcore.errors import ModelError

if TYPE_CHECKING:
    from rlcore_transformers.models.model_options import LanguageModelConfig

MARK = "rlcore_start_dtype"
"""Attribute of a model that is as in its files: the dtype that its weights shall have."""
OPTIONS = ("sampling_dtype", "quantization")
"""Options with which building a policy copies or changes weights."""
_expected: list[str] = []
"""The model of the run that is being built, if the run divides it."""


def expect(name: object) -> None:
    """Set the model of a run, if the run divides it; None if it does not."""
    _expected[:] = [os.fspath(name)] if isinstance(name, (str, os.PathLike)) else []


def forget(built: object) -> object:
    """Return a model that has been built; others are loaded as usual."""
    _expected.clear()
    return built


def is_expected(name: str) -> bool:
    """Return whether this is the model that the run divides; true once."""
    is_it = name in _expected
    if is_it:
        _expected.clear()
    return is_it


def options_in_files(name: str, config: LanguageModelConfig, *, has_heads: bool) -> LanguageModelConfig | None:
    """Return the options to load the model with as it is in its files; None if it is to be loaded as usual.

    Args:
        name: the model's folder or hub id.
        config: options of the architecture.
        has_heads: whether heads were saved with the model, which are written over the value function's blocks.
    """
    if not is_expected(name) or isinstance(name, ConfigOnly):
        return None
    critic, layers = getattr(config, "critic", None), getattr(config, "value_layers", None)
    is_copied = critic == "copy" or bool(layers)
    is_changed = any(getattr(config, option, None) for option in OPTIONS) or critic not in (None, "copy")
    if is_changed or (is_copied and (has_heads or config.peft is not None)):
        return None
    return evolve(config, dtype="auto")


def mark(model: PreTrainedModel, dtype: str, *, adapted: bool = False) -> bool:
    """Mark a model that is as in its files; return False if it would not equal one that was loaded in `dtype`.

    Args:
        model: the model.
        dtype: the dtype that its weights shall have.
        adapted: an adapter will be injected, whose first weights are rounded to the dtype of the layers around them.
    """
    wanted = model.dtype if dtype == "auto" else getattr(torch, dtype)
    floating = [each for each in model.buffers() if each.is_floating_point()]
    weights = {each.dtype for each in model.parameters() if each.is_floating_point()}
    if adapted and weights != {wanted}:
        return False
    # Buffers may have been computed in the dtype of the files, and some weights stay in 32 bits where others do not.
    if weights != {wanted} and (any(each.dtype != wanted for each in floating) or wanted != torch.float32):
        return False
    setattr(model, MARK, wanted)
    for config in (model.config, model.config.get_text_config()):
        config.dtype = wanted
    return True


def start_dtypes(*models: object) -> dict[int, torch.dtype]:
    """Return the dtypes that weights of marked models shall have, by the id of the parameter."""
    return {
        id(weight): vars(model)[MARK]
        for model in models if isinstance(model, PreTrainedModel) and MARK in vars(model)
        for weight in model.parameters() if weight.is_floating_point() and _is_in_files(weight, model)
    }  # fmt: skip


def _is_in_files(weight: nn.Parameter, model: PreTrainedModel) -> bool:
    """Return whether a weight of a marked model is none of an adapter, of another dtype than the model (`mark`)."""
    return not getattr(model, "peft_config", None) or bool(weight.dtype == vars(model)[MARK])


def follow(model: PreTrainedModel, *copies: nn.Module) -> None:
    """Mark copies of parts of a model as it is marked, if it is; they are in the same memory (`share`)."""
    for each in copies if MARK in vars(model) else ():
        setattr(each, MARK, vars(model)[MARK])


def share(model: PreTrainedModel) -> dict[int, Any]:
    """Return parameters in the same memory, by id, for a copy of a marked model: neither is changed before the cut."""
    if MARK not in vars(model):
        return {}
    shared = (each for each in model.parameters() if _is_in_files(each, model))
    return {id(each): nn.Parameter(each.data, requires_grad=False) for each in shared}


def complete(*models: object) -> None:
    """Convert the weights of models that are still marked, in place, because nothing divides them."""
    dtypes = start_dtypes(*models)
    for model in (each for each in models if isinstance(each, PreTrainedModel)):
        for weight in model.parameters():
            if (dtype := dtypes.pop(id(weight), None)) is not None:  # copies share the memory of the files no longer
                weight.data = weight.data.to(dtype, copy=True)
        vars(model).pop(MARK, None)


FROZEN = "frozen_by_rlcore"
"""Marks a parameter that a run froze, to distinguish it in the next run from parameters that the user froze."""
LAYER_COUNTS = ("num_hidden_layers", "decoder_layers", "num_decoder_layers", "n_layer")


def vocabulary_size(model: PreTrainedModel) -> int:
    """Return V, the size of the input embeddings."""
    return cast("Tensor", model.get_input_embeddings().weight).shape[0]


def is_encoder_decoder(model: PreTrainedModel) -> bool:
    """Return whether `model` is an encoder-decoder."""
    return bool(getattr(model.config, "is_encoder_decoder", False))


def decoder_blocks(model: PreTrainedModel) -> nn.ModuleList:
    """Return the transformer blocks: the decoder's module list whose length is the number of layers.

    Raises:
        ModelError: the decoder has no such list.
    """
    text = model.config.get_text_config(decoder=True)
    counts = {getattr(text, name) for name in LAYER_COUNTS if isinstance(getattr(text, name, None), int)}
    for module in model.get_decoder().modules():
        if isinstance(module, nn.ModuleList) and len(module) in counts:
            return module
    raise ModelError(
        f"{type(model).__name__} has no list of {sorted(counts)} blocks in its decoder; "
        "leave unfrozen_layers and value_layers at their defaults for this model"
    )


def blocks_of(trained: nn.Module) -> list[nn.Module]:
    """Return the blocks of every model inside a module, by the names that its class declares; nested ones first.

    Raises:
        ModelError: the model declares none, and its decoder has no list of blocks.
    """
    names = {name for part in trained.modules() for name in getattr(part, "_no_split_modules", None) or ()}
    found = [part for part in trained.modules() if type(part).__name__ in names]
    if not found:
        try:
            found = list(decoder_blocks(cast("Any", trained).model))
        except ModelError as error:
            raise ModelError(
                f"run.shard = 'fsdp': {type(cast('Any', trained).model).__name__} declares no blocks "
                "(_no_split_modules), so how to divide it is unknown: set run.shard=none"
            ) from error
    return [block for block in reversed(found) if any(True for _ in block.parameters())]


def runs_before(model: PreTrainedModel, block: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters used before `block` in a forward pass: embeddings, encoder, and all blocks below."""
    tokens = torch.zeros(1, 2, dtype=torch.long, device=model.device)
    inputs = {"input_ids": tokens, "decoder_input_ids": tokens} if is_encoder_decoder(model) else {"input_ids": tokens}
    called: list[nn.Module] = []
    reached = False

    def note(module: nn.Module, *_: object) -> None:
        nonlocal reached
        reached = reached or module is block
        if not reached and any(True for _ in module.parameters(recurse=False)):
            called.append(module)

    handles = [module.register_forward_pre_hook(note) for module in model.modules()]
    try:
        with torch.no_grad():
            model(**inputs, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    for module in called:
        yield from module.parameters(recurse=False)
    if is_encoder_decoder(model):  # all of it: no token of this pass may have been routed to some experts
        yield from model.get_encoder().parameters()


def thaw(model: PreTrainedModel) -> None:
    """Unfreeze parameters that `freeze_below` froze in an earlier run; parameters that the user froze stay frozen."""
    for parameter in model.parameters():
        if vars(parameter).pop(FROZEN, False):
            parameter.requires_grad_(True)


def freeze_below(model: PreTrainedModel, unfrozen_layers: int) -> None:
    """Freeze all blocks but the top `unfrozen_layers`, the embeddings and parameters tied to them; 0 freezes the model.

    An encoder is always frozen, since it runs before all blocks.

    Raises:
        ModelError: the model has fewer blocks.
    """
    blocks = decoder_blocks(model)
    if unfrozen_layers > len(blocks):
        raise ModelError(
            f"unfrozen_layers = {unfrozen_layers}: {type(model).__name__} has {len(blocks)} blocks; give at most that, "
            "or leave it out to train everything"
        )
    bottom = len(blocks) - unfrozen_layers
    below = [*runs_before(model, blocks[bottom]), *blocks[:bottom].parameters()] if unfrozen_layers else []
    for parameter in below or model.parameters():
        if parameter.requires_grad:
            parameter.requires_grad_(False)
            vars(parameter)[FROZEN] = True


def frozen_copy(model: PreTrainedModel) -> PreTrainedModel:
    """Copy `model` without gradients, sharing every parameter that is frozen in the original.

    Frozen parameters do not change, so the copy takes memory only for the parameters that train: with frozen bottom
    layers it shares their trunk, for any architecture, with tied embeddings or not.
    """
    shared = {id(p): p for p in model.parameters() if not p.requires_grad}
    twin: PreTrainedModel = copy.deepcopy(model, share(model) | shared)
    for parameter in twin.parameters():
        if id(parameter) not in shared:
            parameter.requires_grad_(False)
    twin.eval()
    return twin


def beneath_adapter(model: PreTrainedModel) -> dict[int, nn.Parameter]:
    """Return the parameters that an adapter in `model` does not train, by id; empty without an adapter."""
    if not getattr(model, "peft_config", None):
        return {}
    return {id(parameter): parameter for parameter in model.parameters() if not parameter.requires_grad}


class HeadlessSeq2Seq(nn.Module):
    """An encoder-decoder without its head; many families have no such module, or name it differently."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.encoder, self.decoder = model.get_encoder(), model.get_decoder()

    def forward(self, *, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor, use_cache: bool) -> Any:
        """Return the decoder's output with its `last_hidden_state`; the arguments are those of the whole model."""
        encoded = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return self.decoder(
            input_ids=decoder_input_ids,
            encoder_hidden_states=encoded,
            encoder_attention_mask=attention_mask,
            use_cache=use_cache,
        )

    def gradient_checkpointing_enable(self, options: dict[str, object]) -> None:
        """Recompute the activations of both parts in the backward pass."""
        for part in (self.encoder, self.decoder):
            part.gradient_checkpointing_enable(options)
