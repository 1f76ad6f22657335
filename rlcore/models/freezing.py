"""Find the parts of a decoder by its structure: its blocks, and what runs before, in and after them.

Of an encoder-decoder the blocks are the decoder's, and the encoder is a part of what runs before them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlcore.errors import ModelError

FROZEN = "frozen_by_rlcore"
"""Marks a parameter that a run froze, so that the next run of the same model can tell it from the user's own."""
LAYER_COUNTS = ("num_hidden_layers", "decoder_layers", "num_decoder_layers", "n_layer")


def vocabulary_size(model: PreTrainedModel) -> int:
    """Return V, how many tokens the model can read."""
    return cast("Tensor", model.get_input_embeddings().weight).shape[0]


def is_encoder_decoder(model: PreTrainedModel) -> bool:
    """Tell whether `model` reads what goes before with a part of its own."""
    return bool(getattr(model.config, "is_encoder_decoder", False))


def decoder_blocks(model: PreTrainedModel) -> nn.ModuleList:
    """Return the list of transformer blocks: the module list of the decoder that is as long as its layer count.

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


def runs_before(model: PreTrainedModel, block: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters that take part in a forward pass before `block` does: embeddings, encoder, all below it."""
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
    if is_encoder_decoder(model):  # whole: there may be experts in it that no token of this pass was sent to
        yield from model.get_encoder().parameters()


def thaw(model: PreTrainedModel) -> None:
    """Let train again what `freeze_below` froze in an earlier run of the same model; what the user froze stays."""
    for parameter in model.parameters():
        if vars(parameter).pop(FROZEN, False):
            parameter.requires_grad_(True)


def freeze_below(model: PreTrainedModel, unfrozen_layers: int) -> None:
    """Freeze the embeddings, what is tied to them, and all blocks but the top `unfrozen_layers`; 0 freezes the model.

    An encoder is frozen whatever the number, since it runs before all blocks.

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
    """Copy `model` as it is now, never to be trained, sharing every parameter that is frozen in the original.

    A frozen parameter cannot drift, so the copy pays memory only for what trains: with the bottom layers frozen this is
    a shared trunk, for any architecture, with tied embeddings or not.
    """
    shared = {id(p): p for p in model.parameters() if not p.requires_grad}
    twin: PreTrainedModel = copy.deepcopy(model, shared)
    for parameter in twin.parameters():
        if id(parameter) not in shared:
            parameter.requires_grad_(False)
    twin.eval()
    return twin


def beneath_adapter(model: PreTrainedModel) -> dict[int, nn.Parameter]:
    """Return by their ids the parameters that an adapter in `model` leaves as they are; none if it has no adapter."""
    if not getattr(model, "peft_config", None):
        return {}
    return {id(parameter): parameter for parameter in model.parameters() if not parameter.requires_grad}


class Bare(nn.Module):
    """Be an encoder-decoder without its head; many families have no such module, or call it something else."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.encoder, self.decoder = model.get_encoder(), model.get_decoder()

    def forward(self, *, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor, use_cache: bool) -> Any:
        """Return what the decoder returns, its `last_hidden_state` above all; arguments as the whole model takes."""
        read = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return self.decoder(
            input_ids=decoder_input_ids,
            encoder_hidden_states=read,
            encoder_attention_mask=attention_mask,
            use_cache=use_cache,
        )

    def gradient_checkpointing_enable(self, options: dict[str, Any]) -> None:
        """Recompute the activations of both parts in the backward pass."""
        for part in (self.encoder, self.decoder):
            part.gradient_checkpointing_enable(options)


class Replay(nn.Module):
    """Stand in for a block whose output is already known: hand through what the trunk of another model gave."""

    def __init__(self, block: nn.Module, tape: list[object]) -> None:
        super().__init__()
        for name, value in vars(block).items():
            if isinstance(value, (str, int)) and not name.startswith("_"):
                setattr(self, name, value)
        self.tape = tape

    def forward(self, *_: object, **__: object) -> object:
        """Return the recorded output."""
        return self.tape[0]


class TopLayers(nn.Module):
    """Own a trainable copy of a model's top k blocks and what follows, and run it on the trunk of the model itself.

    The embeddings are the model's own, for a decoder will not run without; what comes of them is never used. The blocks
    between return what the trunk gave when the model last ran inside `recording`, and the copy is called as the model's
    decoder was then, with what an encoder had said.
    """

    def __init__(self, model: PreTrainedModel, layers: int) -> None:
        super().__init__()
        blocks = decoder_blocks(model)
        if not 0 < layers < len(blocks):
            raise ModelError(
                f"value_layers = {layers}: must lie in [0, {len(blocks) - 1}] for the {len(blocks)} blocks of "
                f"{type(model).__name__}; for a whole model of its own set critic = copy"
            )
        self._tape: list[object] = []
        below = blocks[: len(blocks) - layers]
        self._calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self._watched = (below[-1], model.get_decoder())  # in a tuple, so that they are not taken for parts of this
        shared = {id(parameter): parameter for parameter in runs_before(model, blocks[0])} | beneath_adapter(model)
        memo: dict[int, object] = {id(block): Replay(block, self._tape) for block in below}
        self.decoder = copy.deepcopy(model.get_decoder(), memo | shared)
        for parameter in self.decoder.parameters():
            if id(parameter) not in shared:
                parameter.requires_grad_(True)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Note what the trunk gives in the pass of the model that happens in this context."""
        self._forget()
        block, decoder = self._watched
        handles = (
            block.register_forward_hook(lambda *call: self._tape.append(call[2])),
            decoder.register_forward_pre_hook(lambda *call: self._calls.append(call[1:]), with_kwargs=True),
        )
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def forward(self) -> Tensor:
        """Return the last hidden states for the recorded pass, which can be used once.

        Raises:
            RuntimeError: no pass has been recorded since the last call.
        """
        if (len(self._tape), len(self._calls)) != (1, 1):
            raise RuntimeError("run the model inside recording() first")
        ((args, named),) = self._calls
        try:
            hidden: Tensor = self.decoder(*args, **named).last_hidden_state
        finally:
            self._forget()
        return hidden

    def _forget(self) -> None:
        self._tape.clear()
        self._calls.clear()
