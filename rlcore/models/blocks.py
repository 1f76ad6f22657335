"""Find the parts of a decoder by its structure: its blocks, and what runs before, in and after them."""

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
    """Yield the parameters that take part in a forward pass before `block` does: the embeddings and all below it."""
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
            model(input_ids=torch.zeros(1, 2, dtype=torch.long, device=model.device), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    for module in called:
        yield from module.parameters(recurse=False)


def thaw(model: PreTrainedModel) -> None:
    """Let train again what `freeze_below` froze in an earlier run of the same model; what the user froze stays."""
    for parameter in model.parameters():
        if vars(parameter).pop(FROZEN, False):
            parameter.requires_grad_(True)


def freeze_below(model: PreTrainedModel, unfrozen_layers: int) -> None:
    """Freeze the embeddings, what is tied to them, and all blocks but the top `unfrozen_layers`; 0 freezes the model.

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
    between return what the trunk gave when the model last ran inside `recording`.
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
        self._watched = (below[-1],)  # in a tuple, so that it is not taken for a part of this module
        shared = {id(parameter): parameter for parameter in runs_before(model, blocks[0])}
        memo: dict[int, object] = {id(block): Replay(block, self._tape) for block in below}
        self.decoder = copy.deepcopy(model.get_decoder(), memo | shared)
        for parameter in self.decoder.parameters():
            if id(parameter) not in shared:
                parameter.requires_grad_(True)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Note what the trunk gives in the pass of the model that happens in this context."""
        self._tape.clear()
        handle = self._watched[0].register_forward_hook(lambda *call: self._tape.append(call[2]))
        try:
            yield
        finally:
            handle.remove()

    def forward(self, inputs: dict[str, Any]) -> Tensor:
        """Return the last hidden states for the inputs of the recorded pass, which can be used once.

        Raises:
            RuntimeError: no pass has been recorded since the last call.
        """
        if len(self._tape) != 1:
            raise RuntimeError("run the model inside recording() first")
        try:
            hidden: Tensor = self.decoder(**inputs).last_hidden_state
        finally:
            self._tape.clear()
        return hidden
