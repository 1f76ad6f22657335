"""A small Llama, and runs of it whose weights take more memory than their activations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = 1024


def make_folder(folder: Path) -> Path:
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            hidden_size=256, intermediate_size=688, num_hidden_layers=6, num_attention_heads=4, vocab_size=WORDS,
            max_position_embeddings=128, tie_word_embeddings=False,
        )
    ).save_pretrained(folder)  # fmt: skip
    words = {f"w{i}": i for i in range(WORDS - 1)} | {"</s>": WORDS - 1}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="</s>").save_pretrained(folder)
    return folder


def sft_run(folder: Path, shard: str, micro: int) -> dict[str, Any]:
    samples = [[f"w{i} w2 w3 w4", " ".join(["w9"] * 12)] for i in range(24)]
    return _run(folder, shard) | {
        "trainer": {"name": "sft", "batch_size": 12, "micro_batch_size": micro}, "data": {"samples": samples},
    }  # fmt: skip


def ppo_run(folder: Path, shard: str, **trainer: Any) -> dict[str, Any]:
    return _run(folder, shard) | {
        "trainer": {"name": "ppo", "rollouts": 12, "batch_size": 12, "epochs": 2, "kl_coef": 0.1} | trainer,
        "data": {"prompts": [f"w{i} w2 w3 w4" for i in range(24)], "reward_fn": "operator:length_hint"},
        "gen": {"max_new_tokens": 12, "min_new_tokens": 12, "eos_token_ids": []},
    }


def _run(folder: Path, shard: str) -> dict[str, Any]:
    return {
        "model": {"path": str(folder)}, "loggers": [], "eval": {"at_end": False}, "checkpoint": {"at_end": False},
        "run": {"steps": 4, "name": "run", "shard": shard, "report": False, "rollouts": "none"},
    }  # fmt: skip
