"""Run a language model over a batch of trajectories and compute the outputs of the chosen tokens only."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlcore import ops
from rlcore.dropout import eval_mode, is_stochastic
from rlcore.errors import ModelError
from rlcore_transformers.models.compiled import compiled
from rlcore_transformers.models.embedding_noise import noisy
from rlcore_transformers.models.freezing import vocabulary_size
from rlcore_transformers.models.heads import BranchValue, ForwardPass, ValueSource, head_reads
from rlcore_transformers.models.input_layout import InputLayout
from rlcore_transformers.models.model_module import ModelModule
from rlcore_transformers.models.speed.exactness import FAILURES, probe_tokens, tolerance
from rlcore_transformers.models.speed.frozen_trunk import FrozenTrunk, TrunkFollower
from rlcore_transformers.models.speed.fused_logprobs import rows_for_the_head, score_tokens
from rlcore_transformers.models.speed.length_groups import in_groups
from rlcore_transformers.models.speed.logit_tiles import LogitMap
from rlcore_transformers.models.speed.packing import padded_inputs


class ModelOutputs(NamedTuple):
    """Outputs of a model and its heads for N chosen tokens.

    Attributes:
        logprobs: float32[N].
        entropy: float32[N] or None, the entropy of each token's distribution; only if requested.
        logits: float[N, V] or None, the logits that predict each token; only if requested.
        values: float32[N] or None, the value of the state before each token.
        heads: outputs of the further heads for each token, float[..., N] by name.
    """

    logprobs: Tensor
    entropy: Tensor | None
    logits: Tensor | None
    values: Tensor | None = None
    heads: Mapping[str, Tensor] = MappingProxyType({})


def join_outputs(parts: Sequence[ModelOutputs], order: Tensor) -> ModelOutputs:
    """Concatenate the outputs of the parts of a batch and reorder the N tokens by `order`, long[N]."""

    def joined(each: Sequence[Tensor], dim: int = 0) -> Tensor:
        return torch.cat(list(each), dim).index_select(dim, order)

    def joined_if_any(each: Sequence[Tensor | None]) -> Tensor | None:
        found = [tensor for tensor in each if tensor is not None]
        return joined(found) if found else None

    return ModelOutputs(
        joined([part.logprobs for part in parts]),
        joined_if_any([part.entropy for part in parts]),
        joined_if_any([part.logits for part in parts]),
        joined_if_any([part.values for part in parts]),
        {name: joined([part.heads[name] for part in parts], -1) for name in parts[0].heads},
    )


def run_in_groups(
    layout: InputLayout,
    run: Callable[[Tensor, Tensor, Tensor], ModelOutputs],
    tokens: Tensor,
    mask: Tensor,
    action_mask: Tensor,
) -> ModelOutputs:
    """Call `run` on a batch, or, if the layout pads, on groups of sequences of similar length."""
    if layout.pads and layout.speed.length_groups:
        return in_groups(run, join_outputs, tokens, mask, action_mask)
    return run(tokens, mask, action_mask)


class ActorCritic(ModelModule):
    """The model and its heads: one forward pass computes everything that trains, also when the module is wrapped.

    Args:
        model: the language model.
        layout: builds the model's inputs from a batch.
        value: the value function; None without one.
        heads: further heads on the model's trunk, each of which becomes the submodule of its name.
        trunk: cache of the frozen bottom blocks; None without frozen blocks.
        logit_map: what the model does to its head's logits; None if log-probs need all logits
            (`rlcore_transformers.models.logit_map`).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        layout: InputLayout,
        *,
        value: ValueSource | None = None,
        heads: Mapping[str, nn.Module] = MappingProxyType({}),
        trunk: FrozenTrunk | TrunkFollower | None = None,
        logit_map: LogitMap | None = None,
    ) -> None:
        super().__init__()
        self.model, self.layout, self.value, self.trunk = model, layout, value, trunk
        self.logit_map, self.head_names = logit_map, tuple(heads)
        for name, head in heads.items():
            if not name.isidentifier() or hasattr(self, name):
                raise ModelError(f"heads: {name!r} cannot be the name of a head: choose another identifier")
            self.add_module(name, head)

    @property
    def heads(self) -> dict[str, Any]:
        """Return the further heads by name."""
        return {name: getattr(self, name) for name in self.head_names}

    def lockstep_copy(self, memo: dict[int, Any], *, every_block: bool = False) -> ActorCritic:
        """Return a copy that runs every block once in each forward pass, whatever the batch.

        Processes that divide the weights gather each block together.

        Args:
            memo: the copies of what is not copied anew, such as parameters, by the id of the original.
            every_block: run also the frozen blocks whose outputs are cached.
        """
        copied = copy.deepcopy(self, {**memo, id(self.trunk): self.trunk})
        copied.layout = self.layout.lockstep()
        copied.trunk = None if self.trunk is None or every_block else self.trunk.follower()
        return copied

    def forward(
        self,
        tokens: Tensor,
        mask: Tensor,
        action_mask: Tensor,
        *,
        entropy: bool = False,
        logits: bool = False,
        temperature: float = 1.0,
    ) -> ModelOutputs:
        """Compute the outputs of the chosen tokens.

        Args:
            tokens: long[B, T].
            mask: bool[B, T], True for real tokens, which are contiguous in each row.
            action_mask: bool[B, T], True for chosen tokens.
            entropy: compute entropies too.
            logits: return logits too.
            temperature: divides the logits.
        """
        run = partial(self._run, entropy=entropy, logits=logits, temperature=temperature)
        return run_in_groups(self.layout, run, tokens, mask, action_mask)

    def _run(
        self, tokens: Tensor, mask: Tensor, action_mask: Tensor, *, entropy: bool, logits: bool, temperature: float
    ) -> ModelOutputs:
        outputs, run = run_model(
            self.model, self.layout, tokens, mask, action_mask, logit_map=self.logit_map, entropy=entropy,
            logits=logits, temperature=temperature, value=self.value, trunk=self.trunk,
        )  # fmt: skip
        values = None if self.value is None else self.value(run)
        heads: dict[str, Tensor] = {}
        for name in self.head_names:
            heads |= getattr(self, name)(run.hidden[0], run.chosen)
        return outputs._replace(values=values, heads=heads)


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
    temperature: float = 1.0,
    value: ValueSource | None = None,
    trunk: FrozenTrunk | TrunkFollower | None = None,
    max_full_logits: int | None = None,
) -> tuple[ModelOutputs, ForwardPass]:
    """Run `model` over a batch; return the outputs of the chosen tokens, and the forward pass.

    Args:
        model: the language model.
        layout: builds the model's inputs.
        tokens: long[B, T].
        mask: bool[B, T].
        action_mask: bool[B, T].
        logit_map: what the model does to its head's logits; None if log-probs need all logits.
        entropy: compute entropies too.
        logits: return logits too.
        temperature: divides the logits, before log-probs and entropies are computed from them.
        value: the value function that will use this pass.
        trunk: cache of the frozen bottom blocks.
        max_full_logits: above this many chosen tokens, log-probs are computed in tiles of the vocabulary. Default:
            chosen by the memory that all logits would take.
    """
    head = model.get_output_embeddings()
    if logit_map is None or logits:
        max_full_logits = None
    elif max_full_logits is None:
        max_full_logits = rows_for_the_head(head.weight, logit_map, entropy=entropy)
    flat, run = predict(
        model, layout, tokens, mask, action_mask, value=value, trunk=trunk, max_full_logits=max_full_logits
    )
    hidden, chosen = run.hidden[0], run.chosen
    if len(flat) == len(hidden):
        flat = flat if temperature == 1.0 else flat.float() / temperature
        entropies = ops.entropy(flat) if entropy else None
        return ModelOutputs(ops.token_logprobs(flat, chosen), entropies, flat if logits else None), run
    logit_map = (logit_map or LogitMap()).at(temperature)
    scores = score_tokens(hidden, head.weight, head.bias, chosen, logit_map=logit_map, entropy=entropy)
    return ModelOutputs(scores.logprobs, scores.entropy, None), run


def predict(
    model: PreTrainedModel,
    layout: InputLayout,
    tokens: Tensor,
    mask: Tensor,
    action_mask: Tensor,
    *,
    value: ValueSource | None = None,
    trunk: FrozenTrunk | TrunkFollower | None = None,
    max_full_logits: int | None = None,
) -> tuple[Tensor, ForwardPass]:
    """Run `model` over a batch; return the logits that predict the chosen tokens, float[N, V], and the forward pass.

    With more than `max_full_logits` chosen tokens the head runs on no rows, and the logits are empty: float[0, V].
    """
    share = not (is_stochastic(model) or (value is not None and is_stochastic(value)))
    run = ForwardPass(*layout.lay_out(tokens, mask, action_mask, share=share))
    recording = value.top.recording() if isinstance(value, BranchValue) else nullcontext()

    def select_rows(hidden: Tensor) -> Tensor:
        """Pass the head only the rows that predict chosen tokens, or none if there are too many."""
        if hidden.dim() > 3:
            raise ModelError(
                f"{type(model).__name__}: its output embeddings receive hidden states of the shape "
                f"{tuple(hidden.shape)}, as of a model that predicts several tokens at once; rlcore trains models that "
                "predict the next token: choose another model"
            )
        kept = run.keep(hidden)
        run.hidden.append(kept)
        return kept[None] if max_full_logits is None or len(kept) <= max_full_logits else kept[None, :0]

    # Entered first: sequences missing from the cache are computed in a forward pass of their own.
    cached = nullcontext() if trunk is None or not share else trunk.replaying(model, run.inputs)
    changed = (noisy(model, tokens, mask, action_mask), compiled(model))
    with cached, head_reads(model.get_output_embeddings(), select_rows), recording, changed[0], changed[1]:
        logits: Tensor = model(**run.inputs).logits
    if not run.hidden:
        raise ModelError(f"{type(model).__name__} does not call its output embeddings, which rlcore requires")
    return logits.reshape(-1, logits.shape[-1]), run


@torch.no_grad()
def check_next_token(model: PreTrainedModel, layout: InputLayout) -> None:
    """Check on a small batch that the model has the form of a next-token predictor.

    Raises:
        ModelError: it predicts several tokens at each position, or does not call its output embeddings.
    """
    tokens = probe_tokens(model, 3)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    try:
        with eval_mode(model):
            predict(model, layout, tokens, mask, mask & (torch.arange(3, device=tokens.device) > 0))
    except FAILURES as error:  # a model that fails for another reason may accept the batches of the run
        if isinstance(error, ModelError):
            raise


@torch.no_grad()
def looks_ahead(model: PreTrainedModel) -> bool:
    """Return whether the outputs of `model` for a token depend on later tokens, as in encoders.

    The test: two sequences that differ only in their last token must have equal outputs before it.
    """
    tokens = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 4]], device=model.device)
    with eval_mode(model):
        outputs = model(**padded_inputs(tokens % vocabulary_size(model), tokens >= 0))[0][:, :3].float()
    bound = tolerance(model, low_precision=1e-2) * outputs.abs().max()
    return bool((outputs[0] - outputs[1]).abs().max() > bound)
