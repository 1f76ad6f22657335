"""Tiny encoder-decoders of several families, with policies and sequences for them."""

from __future__ import annotations

import copy
from typing import Any

import torch
import transformers as hf
from tiny import spread_out
from tokenizers import processors
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel, PreTrainedTokenizerFast

from rlcore.types import Trajectories
from rlcore_testing.small import EOS, PAD, make_tokenizer
from rlcore_transformers.models.causal import build_seq2seq_lm
from rlcore_transformers.models.model_options import Seq2SeqLMConfig
from rlcore_transformers.models.policy import ModelPolicy

T5: dict[str, Any] = {
    "vocab_size": 32, "d_model": 16, "d_kv": 4, "d_ff": 32, "num_heads": 4, "num_layers": 3, "num_decoder_layers": 4,
    "dropout_rate": 0.0, "decoder_start_token_id": PAD, "pad_token_id": PAD, "eos_token_id": EOS,
}  # fmt: skip
BART: dict[str, Any] = {
    "vocab_size": 32, "d_model": 16, "encoder_layers": 3, "decoder_layers": 4, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "dropout": 0.0,
    "max_position_embeddings": 64, "pad_token_id": PAD, "bos_token_id": EOS, "eos_token_id": EOS,
    "decoder_start_token_id": EOS, "forced_eos_token_id": None,
}  # fmt: skip
CONFIGS = {
    "t5": hf.T5Config(**T5),
    "t5, version 1.1": hf.T5Config(**T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "mt5": hf.MT5Config(**T5),
    "switch": hf.SwitchTransformersConfig(**T5, num_experts=2),
    "bart": hf.BartConfig(**BART),
    "mbart": hf.MBartConfig(**BART),
    "pegasus": hf.PegasusConfig(**BART),
    "marian": hf.MarianConfig(**BART),
}
PROMPTS = ([1, 2, 3, 4, 5], [6], [7, 8, 9], [1, 2, 3, 4, 5])


def make(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForSeq2SeqLM.from_config(copy.deepcopy(CONFIGS[name])).eval()
    if name != "t5":  # its own initialisation is already far from uniform
        spread_out(model)
    return model


def habitual() -> PreTrainedTokenizerFast:
    """Make a tokenizer that adds one token before every text and EOS after it, like BART's."""
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="! $A </s>", special_tokens=[("!", 29), ("</s>", EOS)]
    )
    return tokenizer


def build(model: Any, tokenizer: Any = None, **options: Any) -> ModelPolicy:
    wanted = {name: options.pop(name) for name in ("value_head", "reference", "heads") if name in options}
    return build_seq2seq_lm(model, Seq2SeqLMConfig(**options), tokenizer=tokenizer or make_tokenizer(), **wanted)


def dialogues(side: str = "right", width: int = 14) -> Trajectories:
    """Make three sequences; in the first, others speak between two turns of the policy, and after the last."""
    lengths, chosen_at = (11, 5, 8), ((3, 4, 7, 8), (1, 2, 3, 4), (6, 7))
    mask, chosen = torch.zeros(3, width, dtype=torch.bool), torch.zeros(3, width, dtype=torch.bool)
    for i, length in enumerate(lengths):
        start = {"left": width - length, "right": 0, "both": i}[side]
        mask[i, start : start + length] = True
        chosen[i, [start + at for at in chosen_at[i]]] = True
    tokens = torch.full((3, width), 17)
    tokens[mask] = torch.randint(0, 29, (sum(lengths),), generator=torch.Generator().manual_seed(3))
    return Trajectories(tokens, mask, chosen, torch.ones(3, dtype=torch.bool))
