"""The architecture `seq2seq_lm`: any `AutoModelForSeq2SeqLM` as a policy, optionally with heads and a reference.

The encoder gets the tokens before a sequence's first chosen token, followed by the tokenizer's closing tokens. The
decoder gets the rest, preceded by the model's start tokens. The added tokens are not part of the trajectories, so an
algorithm sees the same prompts and continuations as with a decoder-only model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from rlcore.errors import ModelError
from rlcore.protocols import HeadBuilder
from rlcore_transformers.data.tokens import closing_tokens, opening_tokens
from rlcore_transformers.models import loading
from rlcore_transformers.models.input_layout import Seq2SeqLayout
from rlcore_transformers.models.kind import ENCODER_DECODER
from rlcore_transformers.models.model_options import Seq2SeqLMConfig
from rlcore_transformers.models.peft.adapters import keep_reference
from rlcore_transformers.models.policy import ModelPolicy
from rlcore_transformers.models.policy_parts import add_heads, check_vocabulary, load_critic, make_value, prepare
from rlcore_transformers.models.save_load import starting_point
from rlcore_transformers.models.speed import SpeedReport
from rlcore_transformers.models.tokenizers import carry_special_tokens, load_tokenizer


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
