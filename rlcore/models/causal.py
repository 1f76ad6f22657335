"""The architecture `causal_lm`: any `AutoModelForCausalLM` as a policy, with values and a reference where asked for."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlcore import ops
from rlcore.errors import ModelError
from rlcore.models import loading
from rlcore.models.activations import checkpoint_activations
from rlcore.models.blocks import freeze_below, frozen_copy, thaw, vocabulary_size
from rlcore.models.decoding import CausalDecoder
from rlcore.models.folders import load_heads, load_policy, save_policy
from rlcore.models.forward import ActorCritic, looks_ahead, predict
from rlcore.models.heads import BranchValue, CriticValue, ScoreHead, TrunkValue, ValueHead, ValueSource, hidden_width
from rlcore.models.packing import longest_packed
from rlcore.models.settings import CausalLMConfig
from rlcore.types import PolicyOutputs, Trajectories


class CausalPolicy:
    """A decoder-only language model as algorithms see it (`rlcore.protocols.Policy`)."""

    def __init__(
        self, module: ActorCritic, tokenizer: PreTrainedTokenizerBase, reference: PreTrainedModel | None
    ) -> None:
        self.module, self.tokenizer, self.reference = module, tokenizer, reference
        self.forward: Callable[..., Any] = module
        self.autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
        self.eos_token_ids = loading.eos_token_ids(module.model, tokenizer)
        self.max_length = loading.context_length(module.model)

    @property
    def model(self) -> PreTrainedModel:
        """Return the language model itself."""
        return self.module.model

    @property
    def device(self) -> torch.device:
        """Tell where the parameters are."""
        return self.model.device

    def to(self, device: torch.device) -> None:
        """Move the model, its heads and its reference."""
        self.module.to(device)
        if self.reference is not None:
            self.reference.to(device)  # type: ignore[arg-type]

    def score(self, batch: Trajectories, *, entropy: bool = False, logits: bool = False) -> PolicyOutputs:
        """Say how likely the policy finds each chosen token, with gradients where they are enabled."""
        with self.autocast():
            flat, values = self.forward(batch.tokens, batch.mask, batch.action_mask)
        return _scores(flat, values, batch, entropy=entropy, logits=logits)

    @torch.no_grad()
    def reference_score(self, batch: Trajectories, *, logits: bool = False) -> PolicyOutputs:
        """Say how likely the policy found each chosen token before training began.

        Raises:
            ModelError: the policy was built without a reference.
        """
        if self.reference is None:
            raise ModelError("this policy keeps no reference: build it with reference=True")
        with self.autocast():
            flat, _ = predict(self.reference, batch.tokens, batch.mask, batch.action_mask, longest=self.module.longest)
        return _scores(flat, None, batch, logits=logits)

    def decoder(self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int) -> CausalDecoder:
        """Begin to continue `prompts`; values come with each token where the value head sits on the trunk."""
        value = self.module.value
        head = value.head if isinstance(value, TrunkValue) else None
        pad = int(self.tokenizer.pad_token_id or 0)
        return CausalDecoder(
            self.model, prompts, max_new_tokens=max_new_tokens, value_head=head, pad_id=pad, autocast=self.autocast
        )

    def save_pretrained(self, folder: Path) -> None:
        """Write model and tokenizer as plain `transformers` loads them, and the heads beside them."""
        save_policy(folder, self.module, self.tokenizer)

    def load_pretrained(self, folder: Path) -> None:
        """Take the weights, heads included, from a folder that `save_pretrained` wrote.

        Raises:
            CheckpointError: the folder cannot be read, or holds another model or other heads than this policy has.
        """
        load_policy(folder, self.module)


def _scores(
    flat: Tensor, values: Tensor | None, batch: Trajectories, *, entropy: bool = False, logits: bool = False
) -> PolicyOutputs:
    chosen = batch.action_mask
    return PolicyOutputs(
        logprobs=ops.spread(ops.token_logprobs(flat, batch.tokens[chosen]), chosen),
        values=None if values is None else ops.spread(values, chosen),
        entropy=ops.spread(ops.entropy(flat), chosen) if entropy else None,
        logits=flat if logits else None,
    )


def build_causal_lm(
    spec: loading.ModelSpec,
    config: CausalLMConfig,
    *,
    tokenizer: object = None,
    value_head: bool = False,
    reference: bool = False,
) -> CausalPolicy:
    """Build a policy from a model specification.

    Args:
        spec: hub id, folder, `PretrainedConfig` (random weights) or a model in memory.
        config: options of the architecture.
        tokenizer: object, folder or hub id; the model's own when left out.
        value_head: give the policy a value function, as `config` says; one that was saved with the model comes back.
        reference: keep the policy as it is now, to compare with later; frozen layers are shared, not copied.

    Raises:
        ModelError: the model, tokenizer or options do not fit.
    """
    model = loading.load_model(spec, config)
    loaded_tokenizer = loading.load_tokenizer(spec, tokenizer, config)
    _check_vocabulary(model, loaded_tokenizer)
    if looks_ahead(model):
        raise ModelError(f"{type(model).__name__} lets tokens see later ones; causal_lm takes decoder-only models")
    thaw(model)
    if config.unfrozen_layers is not None:
        freeze_below(model, config.unfrozen_layers)
    value = _critic(model, config) if value_head and config.critic else None
    longest = longest_packed(model) if config.packing else 0
    if value is not None and longest:
        longest = min(longest, longest_packed(value.trunk))
    kept = frozen_copy(model) if reference else None
    source: ValueSource | None = value
    if value_head and value is None:
        source = BranchValue(model, config.value_layers) if config.value_layers else TrunkValue(model)
    if config.gradient_checkpointing:
        checkpoint_activations(model)
        if value is not None:
            checkpoint_activations(value.trunk)
    module = ActorCritic(model, source, longest)
    load_heads(spec, module)
    return CausalPolicy(module, loaded_tokenizer, kept)


def _critic(model: PreTrainedModel, config: CausalLMConfig) -> CriticValue:
    if config.value_layers:
        raise ModelError(f"value_layers = {config.value_layers} and critic = {config.critic!r}: choose one of them")
    critic = copy.deepcopy(model) if config.critic == "copy" else loading.load_critic(str(config.critic), config)
    critic.requires_grad_(True)
    own, needed = vocabulary_size(critic), vocabulary_size(model)
    if own < needed:
        raise ModelError(
            f"critic = {config.critic!r}: it knows {own} tokens and the policy {needed}; a critic reads the policy's "
            "tokens, so it must come from a model with the same tokenizer"
        )
    trunk = cast("PreTrainedModel", critic.base_model)
    if looks_ahead(trunk):
        raise ModelError(f"critic = {config.critic!r}: it lets tokens see later ones, so its values would know the end")
    score = getattr(critic, "score", None)
    if score is None and critic.get_output_embeddings() is None:
        raise ModelError(f"critic = {config.critic!r}: {type(critic).__name__} has no head called `score`")
    head = ScoreHead(score) if score is not None else ValueHead(hidden_width(critic))
    return CriticValue(trunk, head)


def _check_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    size = vocabulary_size(model)
    if len(tokenizer) > size:
        raise ModelError(
            f"the tokenizer knows {len(tokenizer)} tokens, the model {size}: "
            "call model.resize_token_embeddings(len(tokenizer)) or pass the model's own tokenizer"
        )
