"""Tiny policies with value functions, sequences for them, and reference values, one sequence at a time."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from tiny import GPT, SHAPE, make_causal
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlcore.types import Trajectories
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig
from rlcore_transformers.models.policy import ModelPolicy

CONFIGS = {
    "gpt2": hf.GPT2Config(**GPT),
    "llama": hf.LlamaConfig(**SHAPE, tie_word_embeddings=False),
    "qwen2": hf.Qwen2Config(**SHAPE),
    "opt": hf.OPTConfig(**SHAPE, ffn_dim=32, word_embed_proj_dim=8, dropout=0.0),
    "gpt_neox": hf.GPTNeoXConfig(**SHAPE),
    "gemma2": hf.Gemma2Config(**SHAPE, sliding_window=4),
    "gemma3": hf.Gemma3TextConfig(**SHAPE, sliding_window=4),
    "bloom": hf.BloomConfig(vocab_size=32, hidden_size=16, n_layer=4, n_head=4, bos_token_id=30, eos_token_id=30),
    "gptj": hf.GPTJConfig(**GPT, rotary_dim=4),
    "mixtral": hf.MixtralConfig(**SHAPE, num_local_experts=4),
}


def make(name: str) -> PreTrainedModel:
    return make_causal(CONFIGS[name])


def trajectories(side: str = "both") -> Trajectories:
    mask = torch.zeros(3, 14, dtype=torch.bool)
    for i, length in enumerate((9, 4, 12)):
        start = {"left": 14 - length, "right": 0, "both": i}[side]
        mask[i, start : start + length] = True
    tokens = torch.zeros(3, 14, dtype=torch.long)
    tokens[mask] = torch.randint(0, 30, (25,), generator=torch.Generator().manual_seed(3))
    return Trajectories(tokens, mask, mask & (mask.cumsum(1) > 2), torch.ones(3, dtype=torch.bool))


def by_hand(trunk: nn.Module, head: nn.Module, batch: Trajectories) -> Tensor:
    """Compute V before each chosen token, one unpadded sequence at a time: float[N]."""
    values = []
    for ids, real, chosen in zip(batch.tokens, batch.mask, batch.action_mask, strict=True):
        hidden = trunk(ids[real][None], use_cache=False).last_hidden_state[0]
        values.append(head(hidden)[:-1][chosen[real][1:]])
    return torch.cat(values).reshape(-1)


def build(spec: Any, tokenizer: Any, **options: Any) -> ModelPolicy:
    return build_causal_lm(spec, CausalLMConfig(**options), tokenizer=tokenizer, value_head=True)


def values(policy: ModelPolicy, batch: Trajectories) -> Tensor:
    found = policy.score(batch).values
    assert found is not None
    assert not found[~batch.action_mask].any()
    return found[batch.action_mask]
