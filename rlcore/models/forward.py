"""Run a language model over a batch of trajectories, and read off only what predicts chosen tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlcore import ops
from rlcore.errors import ModelError
from rlcore.models.blocks import vocabulary_size
from rlcore.models.heads import BranchValue, ForwardPass, ValueSource
from rlcore.models.packing import packed_inputs, padded_inputs


class ActorCritic(nn.Module):
    """Hold everything that trains, so that one forward pass, wrapped or not, computes it all.

    Args:
        model: the language model.
        value: where values come from; None without a value function.
        longest: tokens of the longest sequence that may run packed, 0 if none (`rlcore.models.packing`).
    """

    def __init__(self, model: PreTrainedModel, value: ValueSource | None, longest: int) -> None:
        super().__init__()
        self.model, self.value, self.longest = model, value, longest

    def forward(self, tokens: Tensor, mask: Tensor, action_mask: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the logits that predict the chosen tokens, float[N, V], and the values before them, float32[N].

        Args:
            tokens: long[B, T].
            mask: bool[B, T], real tokens; they stand side by side in each row.
            action_mask: bool[B, T].
        """
        return predict(self.model, tokens, mask, action_mask, value=self.value, longest=self.longest)


def predict(
    model: PreTrainedModel,
    tokens: Tensor,
    mask: Tensor,
    action_mask: Tensor,
    *,
    value: ValueSource | None = None,
    longest: int = 0,
) -> tuple[Tensor, Tensor | None]:
    """Run `model` over a batch as `ActorCritic.forward` says."""
    rows = ops.predicting(action_mask)
    if mask.shape[1] <= longest or (longest and int(mask.sum(1).max()) <= longest):
        read = mask & ops.needed(mask, rows)
        inputs, rows = packed_inputs(tokens, read), rows[read]
    else:
        inputs = padded_inputs(tokens, mask)
    run = ForwardPass(inputs, rows.reshape(-1).nonzero()[:, 0])
    recording = value.top.recording() if isinstance(value, BranchValue) else nullcontext()
    with _narrowed(model.get_output_embeddings(), run), recording:
        logits: Tensor = model(**inputs).logits
    if not run.hidden:
        raise ModelError(f"{type(model).__name__} does not call its output embeddings: causal_lm cannot take it")
    return logits.reshape(-1, logits.shape[-1]), None if value is None else value(run)


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
