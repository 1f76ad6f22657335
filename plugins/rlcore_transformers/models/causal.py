"""The architecture `causal_lm`: any `AutoModelForCausalLM` as a policy, optionally with heads and a reference.

Also in this file: the architecture `seq2seq_lm`: any `AutoModelForSeq2SeqLM` as a policy, optionally with heads and a
reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import cast

from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from rlcore.errors import ConfigError, ModelError
from rlcore.protocols import HeadBuilder
from rlcore_transformers.data.tokens import closing_tokens, opening_tokens
from rlcore_transformers.models import loading
from rlcore_transformers.models.forward import add_noise, looks_ahead, use_compiler
from rlcore_transformers.models.input_layout import ENCODER_DECODER, CausalLayout, Seq2SeqLayout
from rlcore_transformers.models.loading import use_liger
from rlcore_transformers.models.model_options import CausalLMConfig, Seq2SeqLMConfig
from rlcore_transformers.models.peft.adapters import keep_reference
from rlcore_transformers.models.policy import ModelPolicy
from rlcore_transformers.models.policy_parts import add_heads, check_vocabulary, load_critic, make_value, prepare
from rlcore_transformers.models.save_load import starting_point
from rlcore_transformers.models.speed import SpeedReport
from rlcore_transformers.models.speed.frozen_trunk import make_trunk
from rlcore_transformers.models.speed.packing import longest_packed
from rlcore_transformers.models.tokenizers import carry_special_tokens, load_tokenizer


def build_causal_lm(
    spec: loading.ModelSpec,
    config: CausalLMConfig,
    *,
    tokenizer: object = None,
    value_head: bool = False,
    reference: bool = False,
    heads: Mapping[str, HeadBuilder] | None = None,
    start: Path | None = None,
) -> ModelPolicy:
    """Build a policy from a model specification.

    Args:
        spec: hub id, folder, `PretrainedConfig` (random weights) or a model in memory.
        config: options of the architecture.
        tokenizer: object, folder or hub id; the model's own if omitted.
        value_head: add a value function as `config` describes; one that was saved with the model is loaded.
        reference: keep the initial policy for comparison; frozen layers are shared, not copied.
        heads: what builds each further head on the trunk, by name; heads saved with the model are loaded.
        start: folder with the model before training, of a run that is resumed (`rlcore.protocols.Restorable`).

    Raises:
        ModelError: the model, tokenizer or options do not fit.
        ConfigError: the machine cannot run `compile` or `liger_kernel`.
    """
    spec = starting_point(spec, start, in_place=True)
    model = loading.load_model(spec, config)
    loaded_tokenizer = load_tokenizer(spec, tokenizer, config)
    check_vocabulary(model, loaded_tokenizer)
    carry_special_tokens(model, loaded_tokenizer, tokenizer)
    if looks_ahead(model):
        raise ModelError(
            f"{type(model).__name__} lets tokens attend to later ones; causal_lm takes decoder-only models"
        )
    prepare(model, config)
    critic = load_critic(model, config) if value_head and config.critic else None
    if critic is not None and looks_ahead(cast("PreTrainedModel", critic.base_model)):
        raise ModelError(
            f"critic = {config.critic!r}: it lets tokens attend to later ones, so its values would use the future"
        )
    speed = SpeedReport(config.speed)
    longest = speed.find("packing", lambda: _longest_packed(model, critic), 0)
    speed.needs("prefixes", "packing")
    speed.needs("attention_groups", "packing")
    layout = CausalLayout(longest, int(loaded_tokenizer.pad_token_id or 0), config.speed)
    kept = keep_reference(model, layout) if reference else None
    value = make_value(model, config, critic) if value_head else None
    room = config.trunk_cache_gb * 1e9
    find_trunk = partial(
        make_trunk, model, above=config.value_layers, packs=longest > 0, room=room, share=config.speed.prefixes
    )
    trunk = speed.find("frozen_trunk", find_trunk, None)
    module = add_heads(spec, model, layout, config, speed, value=value, heads=heads or {}, trunk=trunk)
    change_passes(model, config)
    context = loading.context_length(model)
    return ModelPolicy(
        module,
        loaded_tokenizer,
        kept,
        max_length=context,
        max_prompt_length=max(context - 1, 0),
        sampling_dtype=config.sampling_dtype,
    )


def change_passes(model: PreTrainedModel, config: CausalLMConfig) -> None:
    """Change how the policy runs; its reference, which is made before, and its critic stay as they are.

    Raises:
        ConfigError: an option cannot be used with this model or on this machine.
    """
    if config.neftune_alpha:
        add_noise(model, config.neftune_alpha)
    if config.liger_kernel:
        use_liger(model)
    if config.compile is not None and config.gradient_checkpointing:
        raise ConfigError(
            f"model.compile = {config.compile!r}: blocks whose activations are recomputed are not compiled; leave out "
            "model.compile or model.gradient_checkpointing"
        )
    if config.compile is not None:
        use_compiler(model, config.compile)


def _longest_packed(model: PreTrainedModel, critic: PreTrainedModel | None) -> int:
    """Switch the model and its critic to packed attention; return the tokens of the longest sequence both may pack.

    Raises:
        TechniqueRefused: one of them does not allow packing.
    """
    longest = longest_packed(model)
    return longest if critic is None else min(longest, longest_packed(cast("PreTrainedModel", critic.base_model)))


def build_seq2seq_lm(
    spec: loading.ModelSpec,
    config: Seq2SeqLMConfig,
    *,
    tokenizer: object = None,
    value_head: bool = False,
    reference: bool = False,
    heads: Mapping[str, HeadBuilder] | None = None,
    start: Path | None = None,
) -> ModelPolicy:
    """Build a policy from a model specification; the arguments are those of `build_causal_lm`.

    Raises:
        ModelError: the model, tokenizer or options do not fit.
    """
    spec = starting_point(spec, start, in_place=True)
    model = loading.load_model(spec, config, ENCODER_DECODER)
    loaded_tokenizer = load_tokenizer(spec, tokenizer, config)
    check_vocabulary(model, loaded_tokenizer)
    carry_special_tokens(model, loaded_tokenizer, tokenizer)
    prepare(model, config)
    critic = load_critic(model, config) if value_head and config.critic else None
    layout = _make_layout(model, loaded_tokenizer, config)
    speed = SpeedReport(config.speed)
    for name in ("packing", "prefixes", "attention_groups", "frozen_trunk"):
        speed.refuse(name, "encoder-decoder")
    kept = keep_reference(model, layout) if reference else None
    value = make_value(model, config, critic) if value_head else None
    module = add_heads(spec, model, layout, config, speed, value=value, heads=heads or {})
    return ModelPolicy(
        module, loaded_tokenizer, kept, max_length=layout.max_length, max_prompt_length=layout.max_prompt_length,
        outputs_begin_text=True, sampling_dtype=config.sampling_dtype,
    )  # fmt: skip


def _make_layout(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: Seq2SeqLMConfig) -> Seq2SeqLayout:
    """Return the input layout of `model`: start and closing tokens, and maximum lengths.

    Raises:
        ModelError: the model's configuration has no start token of the decoder.
    """
    return Seq2SeqLayout(
        opening=_decoder_opening(model, tokenizer),
        closing=closing_tokens(tokenizer),
        encoder_length=_bound(model.config, "encoder"),
        decoder_length=_bound(model.config, "decoder"),
        pad_id=int(tokenizer.pad_token_id or 0),
        speed=config.speed,
    )


def _decoder_opening(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return the decoder's first tokens: the start token, then the forced BOS or the tokenizer's opening tokens."""
    start = _generation_option(model, "decoder_start_token_id")
    if start is None:
        start = _generation_option(model, "bos_token_id")
    if start is None:
        raise ModelError(
            f"{type(model).__name__} has no start token of its decoder: set decoder_start_token_id in its "
            "configuration (for T5 the padding token's id, for BART EOS's)"
        )
    forced = _generation_option(model, "forced_bos_token_id")
    return (start, *(opening_tokens(tokenizer, None) if forced is None else (forced,)))


def _generation_option(model: PreTrainedModel, name: str) -> int | None:
    for source in (model.generation_config, model.config):
        found = getattr(source, name, None)
        if isinstance(found, (list, tuple)) and found:
            found = found[0]
        if isinstance(found, int):
            return found
    return None


def _bound(config: PretrainedConfig, side: str) -> int:
    """Return the maximum positions of the encoder or the decoder; 0 if the configuration has no bound."""
    for name in (f"max_{side}_position_embeddings", "max_position_embeddings"):
        if found := getattr(config, name, None):
            return int(found)
    return 0
