"""Value functions: a head on the policy's trunk, on top layers of its own, or on another model; and what heads read.

Also in this file: a value function's own copy of the top layers, which runs on the trunk of the policy's model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlcore.errors import ModelError
from rlcore_transformers.models.freezing import (
    HeadlessSeq2Seq,
    beneath_adapter,
    decoder_blocks,
    follow,
    runs_before,
    share,
)


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
        self._calls: list[tuple[tuple[object, ...], dict[str, object]]] = []
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


@attrs.frozen(eq=False)
class ForwardPass:
    """A forward pass of the policy's model, from which values are computed.

    Attributes:
        inputs: the model's keyword arguments.
        rows: long[N], positions in the flattened batch that predict the chosen tokens.
        chosen: long[N], the chosen tokens.
        hidden: inputs of the output embeddings, float[N, H]; one entry after the model has run.
    """

    inputs: dict[str, Any]
    rows: Tensor
    chosen: Tensor
    hidden: list[Tensor] = attrs.field(factory=list)

    def keep(self, hidden: Tensor) -> Tensor:
        """Select the rows that predict chosen tokens: float[B, T, H] -> float[N, H]."""
        return hidden.reshape(-1, hidden.shape[-1]).index_select(0, self.rows.to(hidden.device))


@contextmanager
def head_reads(head: nn.Module, change: Callable[[Tensor], Tensor] | None = None) -> Iterator[list[Tensor]]:
    """Return a list that collects the inputs of `head` while the context is open, one entry per call.

    Families differ in the form of `logits_to_keep` and in the names of hidden states; the input of the output
    embeddings is the same in all of them.

    Args:
        head: the output embeddings.
        change: maps the hidden states, float[B, T, H], to those that the head receives instead.
    """
    read: list[Tensor] = []

    def note(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        read.append(args[0] if change is None else change(args[0]))
        return (read[-1], *args[1:])

    hook = head.register_forward_pre_hook(note)
    try:
        yield read
    finally:
        hook.remove()


class ValueHead(nn.Module):
    """Map hidden states to values: Linear(H, 2H), ReLU, Linear(2H, 1); in float32 whatever the model's precision.

    Args:
        width: H.
        gain: factor of the hidden states.
    """

    def __init__(self, width: int, gain: float = 1.0) -> None:
        super().__init__()
        self.gain = gain
        self.rise = nn.Linear(width, 2 * width)
        self.fall = nn.Linear(2 * width, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return float32[N] for float[N, H]."""
        with full_precision(hidden):
            out: Tensor = self.fall(torch.relu(self.rise(hidden.float() * self.gain)))
        return out[..., 0]


class ScoreHead(nn.Module):
    """Values from the score head of a sequence classifier with one label."""

    def __init__(self, score: nn.Module) -> None:
        super().__init__()
        self.score = score

    def forward(self, hidden: Tensor) -> Tensor:
        """Return float32[N] for float[N, H]."""
        out: Tensor = self.score(hidden)
        return out[..., 0].float()


class TrunkValue(nn.Module):
    """Values from the hidden states that the policy's output embeddings receive."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.head = ValueHead(hidden_width(model), hidden_gain(model))

    def forward(self, run: ForwardPass) -> Tensor:
        """Return float32[N]."""
        values: Tensor = self.head(run.hidden[0])
        return values


class BranchValue(nn.Module):
    """Values from a trainable copy of the top layers on the policy's trunk."""

    def __init__(self, model: PreTrainedModel, layers: int) -> None:
        super().__init__()
        self.top = TopLayers(model, layers)
        self.head = ValueHead(hidden_width(model))

    def forward(self, run: ForwardPass) -> Tensor:
        """Return float32[N]; the policy's forward pass must have run inside `top.recording()`."""
        values: Tensor = self.head(run.keep(self.top()))
        return values


class CriticValue(nn.Module):
    """Values from another model.

    Args:
        trunk: that model without its head.
        head: maps its hidden states to values.
    """

    def __init__(self, trunk: PreTrainedModel | HeadlessSeq2Seq, head: ScoreHead | ValueHead) -> None:
        super().__init__()
        self.trunk, self.head = trunk, head

    def forward(self, run: ForwardPass) -> Tensor:
        """Return float32[N]."""
        values: Tensor = self.head(run.keep(self.trunk(**run.inputs).last_hidden_state))
        return values


ValueSource = TrunkValue | BranchValue | CriticValue


def full_precision(hidden: Tensor) -> AbstractContextManager[Any]:
    """Return a context without autocast for the device of `hidden`: values need full precision."""
    device = hidden.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def hidden_width(model: PreTrainedModel) -> int:
    """Return H, the width of the hidden states that the output embeddings receive."""
    return int(model.get_output_embeddings().weight.shape[-1])


def hidden_gain(model: PreTrainedModel) -> float:
    """Return the factor that undoes a model's scaling of the hidden states before its output embeddings.

    T5 with tied embeddings divides them by the square root of their width, too small for a new head to learn from.
    """
    scales = getattr(model.config, "scale_decoder_outputs", False)
    return float(model.config.d_model) ** 0.5 if scales else 1.0
