"""Run a language model over a batch of trajectories, and read off only what predicts chosen tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlcore.errors import ModelError
from rlcore.models.blocks import vocabulary_size
from rlcore.models.heads import BranchValue, ForwardPass, ValueSource
from rlcore.models.packing import padded_inputs
from rlcore.models.q_heads import QHeads, QScores
from rlcore.models.reading import Reader


class Said(NamedTuple):
    """Hold what a model and its heads said of N chosen tokens.

    Attributes:
        logits: float[N, V], that predict them.
        values: float32[N] or None, V before each.
        q: what the Q-heads say of each, None without them.
    """

    logits: Tensor
    values: Tensor | None
    q: QScores | None


class ActorCritic(nn.Module):
    """Hold everything that trains, so that one forward pass, wrapped or not, computes it all.

    Args:
        model: the language model.
        reader: lays batches out for it.
        value: where values come from; None without a value function.
        q_heads: Q-heads on the model's trunk, None without.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        reader: Reader,
        *,
        value: ValueSource | None = None,
        q_heads: QHeads | None = None,
    ) -> None:
        super().__init__()
        self.model, self.reader, self.value, self.q_heads = model, reader, value, q_heads

    def forward(self, tokens: Tensor, mask: Tensor, action_mask: Tensor) -> Said:
        """Say what there is to say of the chosen tokens.

        Args:
            tokens: long[B, T].
            mask: bool[B, T], real tokens; they stand side by side in each row.
            action_mask: bool[B, T].
        """
        logits, run = predict(self.model, self.reader, tokens, mask, action_mask, value=self.value)
        values = None if self.value is None else self.value(run)
        q = None if self.q_heads is None else self.q_heads(run.hidden[0], tokens[action_mask])
        return Said(logits, values, q)


def predict(
    model: PreTrainedModel,
    reader: Reader,
    tokens: Tensor,
    mask: Tensor,
    action_mask: Tensor,
    *,
    value: ValueSource | None = None,
) -> tuple[Tensor, ForwardPass]:
    """Run `model` over a batch; return the logits that predict the chosen tokens, float[N, V], and the pass itself."""
    inputs, rows = reader.read(tokens, mask, action_mask)
    run = ForwardPass(inputs, rows)
    recording = value.top.recording() if isinstance(value, BranchValue) else nullcontext()
    with _narrowed(model.get_output_embeddings(), run), recording:
        logits: Tensor = model(**inputs).logits
    if not run.hidden:
        raise ModelError(f"{type(model).__name__} does not call its output embeddings: rlcore cannot take it")
    return logits.reshape(-1, logits.shape[-1]), run


@contextmanager
def _narrowed(head: nn.Module, run: ForwardPass) -> Iterator[None]:
    """Have `head` read the rows that predict chosen tokens and no others, and note them.

    The families that take `logits_to_keep` take it in different forms; the head's input is the same in all of them.
    """

    def narrow(_: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor]:
        kept = run.keep(args[0])
        run.hidden.append(kept)
        return (kept[None],)

    handle = head.register_forward_pre_hook(narrow)
    try:
        yield
    finally:
        handle.remove()


@torch.no_grad()
def looks_ahead(model: PreTrainedModel) -> bool:
    """Tell whether what `model` says of a token depends on later ones, as in encoders, which cannot be sampled from.

    Two sequences that differ in their last token only must agree before it.
    """
    tokens = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 4]], device=model.device)
    training = model.training
    model.eval()
    try:
        said = model(**padded_inputs(tokens % vocabulary_size(model), tokens >= 0))[0][:, :3].float()
    finally:
        model.train(training)
    tolerance = 1e-4 if model.dtype == torch.float32 else 1e-2
    return bool((said[0] - said[1]).abs().max() > tolerance * said.abs().max())
