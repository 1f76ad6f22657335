"""Run a language model over a batch of trajectories, and read off only what predicts chosen tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlcore import ops
from rlcore.errors import ModelError
from rlcore.models.dropout import eval_mode, is_stochastic
from rlcore.models.freezing import vocabulary_size
from rlcore.models.head_input import head_reads
from rlcore.models.heads import BranchValue, ForwardPass, ValueSource
from rlcore.models.inputs import InputLayout
from rlcore.models.q_heads import QHeads, QScores
from rlcore.models.speed.exactness import tolerance
from rlcore.models.speed.frozen_trunk import FrozenTrunk
from rlcore.models.speed.fused_logprobs import rows_for_the_head, score_tokens
from rlcore.models.speed.length_groups import in_groups
from rlcore.models.speed.logit_tiles import LogitMap
from rlcore.models.speed.packing import padded_inputs


class ModelOutputs(NamedTuple):
    """Hold what a model and its heads said of N chosen tokens.

    Attributes:
        logprobs: float32[N].
        entropy: float32[N] or None, of the distributions they came from; only when asked for.
        logits: float[N, V] or None, that predict them; only when asked for.
        values: float32[N] or None, V before each.
        q: what the Q-heads say of each, None without them.
    """

    logprobs: Tensor
    entropy: Tensor | None
    logits: Tensor | None
    values: Tensor | None = None
    q: QScores | None = None


def join_outputs(parts: Sequence[ModelOutputs], order: Tensor) -> ModelOutputs:
    """Put what was said of the parts of a batch side by side, and take its entries in another order, long[N]."""

    def joined(each: Sequence[Tensor], dim: int = 0) -> Tensor:
        return torch.cat(list(each), dim).index_select(dim, order)

    def joined_if_any(each: Sequence[Tensor | None]) -> Tensor | None:
        found = [tensor for tensor in each if tensor is not None]
        return joined(found) if found else None

    q = [part.q for part in parts if part.q is not None]
    return ModelOutputs(
        joined([part.logprobs for part in parts]),
        joined_if_any([part.entropy for part in parts]),
        joined_if_any([part.logits for part in parts]),
        joined_if_any([part.values for part in parts]),
        QScores(*(joined(each, 1) for each in zip(*q, strict=True))) if q else None,
    )


def run_in_groups(
    layout: InputLayout,
    run: Callable[[Tensor, Tensor, Tensor], ModelOutputs],
    tokens: Tensor,
    mask: Tensor,
    action_mask: Tensor,
) -> ModelOutputs:
    """Run a pass over a batch; where the layout pads, in groups of about one length."""
    if layout.pads and layout.speed.length_groups:
        return in_groups(run, join_outputs, tokens, mask, action_mask)
    return run(tokens, mask, action_mask)


class ActorCritic(nn.Module):
    """Hold everything that trains, so that one forward pass, wrapped or not, computes it all.

    Args:
        model: the language model.
        layout: lays batches out for it.
        value: where values come from; None without a value function.
        q_heads: Q-heads on the model's trunk, None without.
        trunk: the bottom of the model, where it does not train and need not run each time.
        logit_map: what the model does to its head's logits, where its head need not run (`rlcore.models.logit_map`).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        layout: InputLayout,
        *,
        value: ValueSource | None = None,
        q_heads: QHeads | None = None,
        trunk: FrozenTrunk | None = None,
        logit_map: LogitMap | None = None,
    ) -> None:
        super().__init__()
        self.model, self.layout, self.value, self.q_heads, self.trunk = model, layout, value, q_heads, trunk
        self.logit_map = logit_map

    def forward(
        self, tokens: Tensor, mask: Tensor, action_mask: Tensor, *, entropy: bool = False, logits: bool = False
    ) -> ModelOutputs:
        """Say what there is to say of the chosen tokens.

        Args:
            tokens: long[B, T].
            mask: bool[B, T], real tokens; they stand side by side in each row.
            action_mask: bool[B, T].
            entropy: say the entropies too.
            logits: give the logits too.
        """
        run = partial(self._run, entropy=entropy, logits=logits)
        return run_in_groups(self.layout, run, tokens, mask, action_mask)

    def _run(self, tokens: Tensor, mask: Tensor, action_mask: Tensor, *, entropy: bool, logits: bool) -> ModelOutputs:
        said, run = run_model(
            self.model, self.layout, tokens, mask, action_mask, logit_map=self.logit_map, entropy=entropy,
            logits=logits, value=self.value, trunk=self.trunk,
        )  # fmt: skip
        values = None if self.value is None else self.value(run)
        q = None if self.q_heads is None else self.q_heads(run.hidden[0], run.chosen)
        return said._replace(values=values, q=q)


def run_model(
    model: PreTrainedModel,
    layout: InputLayout,
    tokens: Tensor,
    mask: Tensor,
    action_mask: Tensor,
    *,
    logit_map: LogitMap | None = None,
    entropy: bool = False,
    logits: bool = False,
    value: ValueSource | None = None,
    trunk: FrozenTrunk | None = None,
    most: int | None = None,
) -> tuple[ModelOutputs, ForwardPass]:
    """Run `model` over a batch; return what it says of the chosen tokens, and the pass itself.

    Args:
        model: the language model.
        layout: lays the batch out for it.
        tokens: long[B, T].
        mask: bool[B, T].
        action_mask: bool[B, T].
        logit_map: what the model does to its head's logits; None where its head must run itself.
        entropy: say the entropies too.
        logits: give the logits too.
        value: where values will be asked for.
        trunk: the bottom of the model, where it need not run.
        most: logits of so many tokens are kept whole, log-probs of more are read off a tile of logits at a time; as
            many as are small beside a model when left out.
    """
    head = model.get_output_embeddings()
    if logit_map is None or logits:
        most = None
    elif most is None:
        most = rows_for_the_head(head.weight, logit_map, entropy=entropy)
    flat, run = predict(model, layout, tokens, mask, action_mask, value=value, trunk=trunk, most=most)
    hidden, chosen = run.hidden[0], run.chosen
    if len(flat) == len(hidden):
        entropies = ops.entropy(flat) if entropy else None
        return ModelOutputs(ops.token_logprobs(flat, chosen), entropies, flat if logits else None), run
    scores = score_tokens(hidden, head.weight, head.bias, chosen, logit_map=logit_map or LogitMap(), entropy=entropy)
    return ModelOutputs(scores.logprobs, scores.entropy, None), run


def predict(
    model: PreTrainedModel,
    layout: InputLayout,
    tokens: Tensor,
    mask: Tensor,
    action_mask: Tensor,
    *,
    value: ValueSource | None = None,
    trunk: FrozenTrunk | None = None,
    most: int | None = None,
) -> tuple[Tensor, ForwardPass]:
    """Run `model` over a batch; return the logits that predict the chosen tokens, float[N, V], and the pass itself.

    With more than `most` chosen tokens the head is given none to read, and there are no logits: float[0, V].
    """
    share = not (is_stochastic(model) or (value is not None and is_stochastic(value)))
    run = ForwardPass(*layout.lay_out(tokens, mask, action_mask, share=share))
    recording = value.top.recording() if isinstance(value, BranchValue) else nullcontext()

    def narrowed(hidden: Tensor) -> Tensor:
        """Have the head read the rows that predict chosen tokens and no others, none if there are too many."""
        kept = run.keep(hidden)
        run.hidden.append(kept)
        return kept[None] if most is None or len(kept) <= most else kept[None, :0]

    # Entered first: what is not known yet is read in a pass of its own.
    known = nullcontext() if trunk is None or not share else trunk.replaying(model, run.inputs)
    with known, head_reads(model.get_output_embeddings(), narrowed), recording:
        logits: Tensor = model(**run.inputs).logits
    if not run.hidden:
        raise ModelError(f"{type(model).__name__} does not call its output embeddings: rlcore cannot take it")
    return logits.reshape(-1, logits.shape[-1]), run


@torch.no_grad()
def looks_ahead(model: PreTrainedModel) -> bool:
    """Tell whether what `model` says of a token depends on later ones, as in encoders, which cannot be sampled from.

    Two sequences that differ in their last token only must agree before it.
    """
    tokens = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 4]], device=model.device)
    with eval_mode(model):
        outputs = model(**padded_inputs(tokens % vocabulary_size(model), tokens >= 0))[0][:, :3].float()
    bound = tolerance(model, low_precision=1e-2) * outputs.abs().max()
    return bool((outputs[0] - outputs[1]).abs().max() > bound)
