"""Sizes of tiny models of every family, and a common initialisation."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

SHAPE: dict[str, Any] = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 64, "pad_token_id": 31, "bos_token_id": 30,
    "eos_token_id": 30,
}  # fmt: skip
GPT: dict[str, Any] = {
    "vocab_size": 32, "n_embd": 16, "n_layer": 4, "n_head": 4, "n_positions": 64, "bos_token_id": 30,
    "eos_token_id": 30, "pad_token_id": 31, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
}  # fmt: skip


def make_causal(config: PreTrainedConfig) -> PreTrainedModel:
    """Make the language model that `config` describes, with seeded weights."""
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(copy.deepcopy(config)).eval()
    spread_out(model)
    return model


def spread_out(model: nn.Module, seed: int = 0) -> None:
    """Re-initialise matrices with larger values, so that predictions are far from uniform in every family."""
    torch.manual_seed(seed)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3)
