"""A value function's own copy of the top layers, which runs on the trunk of the policy's model."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from rlcore.errors import ModelError
from rlcore_transformers.models.freezing import beneath_adapter, decoder_blocks, runs_before
from rlcore_transformers.models.start import follow, share


class Replay(nn.Module):
    """Return the recorded output of another model's block instead of computing it."""

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
    """A trainable copy of a model's top k blocks and final norm, which runs on the trunk of the model itself.

    The copy shares the model's embeddings, because a decoder cannot run without; their output is not used. The blocks
    below return the trunk's output of the last forward pass inside `recording`, and the copy is called with the
    arguments of the model's decoder in that pass, encoder outputs included.
    """

    def __init__(self, model: PreTrainedModel, layers: int) -> None:
        super().__init__()
        blocks = decoder_blocks(model)
        if not 0 < layers < len(blocks):
            raise ModelError(
                f"value_layers = {layers}: must lie in [0, {len(blocks) - 1}] for the {len(blocks)} blocks of "
                f"{type(model).__name__}; for a whole copy of the model set critic = copy"
            )
        self._tape: list[object] = []
        below = blocks[: len(blocks) - layers]
        self._calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self._watched = (below[-1], model.get_decoder())  # in a tuple, so that they do not become submodules
        shared = {id(parameter): parameter for parameter in runs_before(model, blocks[0])} | beneath_adapter(model)
        memo: dict[int, object] = {id(block): Replay(block, self._tape) for block in below}
        self.decoder = copy.deepcopy(model.get_decoder(), memo | share(model) | shared)
        follow(model, self.decoder)
        for parameter in self.decoder.parameters():
            if id(parameter) not in shared:
                parameter.requires_grad_(True)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the trunk's output in the forward pass of the model inside this context."""
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
        """Return the last hidden states for the recorded pass, which is then discarded.

        Raises:
            RuntimeError: no pass was recorded since the last call.
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
