"""Small model folders and run configurations for the tests of `rlcore plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    GPT2Config,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
)

from rlcore.config import merge

WORDS = 512
GPT: dict[str, Any] = {
    "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": WORDS, "n_positions": 128, "bos_token_id": WORDS - 1,
    "eos_token_id": WORDS - 1,
}  # fmt: skip
LLAMA: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": WORDS, "max_position_embeddings": 128,
}  # fmt: skip
PROMPTS = [f"w{i} w2 w3 w4 w5 w6 w7 w8" for i in range(16)]
SAMPLES = [[f"w{i} w2 w3 w4", " ".join(["w9"] * 59)] for i in range(16)]


def save(folder: Path, config: PreTrainedConfig) -> Path:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    words = {f"w{i}": i for i in range(config.vocab_size - 1)} | {"</s>": config.vocab_size - 1}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="</s>").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    judge = save(root / "judge", LlamaConfig(**LLAMA))
    about = LlamaConfig(**LLAMA, num_labels=1, pad_token_id=WORDS - 1)
    AutoModelForSequenceClassification.from_config(about).save_pretrained(judge)
    gpt, llama = save(root / "gpt", GPT2Config(**GPT)), save(root / "llama", LlamaConfig(**LLAMA))
    return {"gpt": gpt, "llama": llama, "judge": judge}


def reward(outputs: list[str], **_: Any) -> list[float]:
    return [float(len(output) % 7) for output in outputs]


def ppo(folder: Path, **trainer: Any) -> dict[str, Any]:
    return {
        "model": {"path": str(folder)},
        "trainer": {"name": "ppo", "rollouts": 16, "batch_size": 16, "epochs": 1, **trainer},
        "data": {"prompts": PROMPTS, "reward_fn": reward},
        "gen": {"max_new_tokens": 56, "eos_token_ids": []},
    }


def imitation(folder: Path, name: str, **trainer: Any) -> dict[str, Any]:
    rewards = {"rewards": [float(i) for i in range(len(SAMPLES))]} if name == "ilql" else {}
    return {
        "model": {"path": str(folder)},
        "trainer": {"name": name, "batch_size": 16, **trainer},
        "data": {"samples": SAMPLES, **rewards},
    }


def judged(folder: Path, **reward_model: Any) -> dict[str, Any]:
    """Return a run of `ppo` whose reward is the model in the folder `judge` beside that of the policy."""
    chosen = {"fn": "reward_model", "path": str(folder.parent / "judge"), **reward_model}
    return merge(ppo(folder, micro_batch_size=2), {"data": {"reward_fn": chosen}})


def preferences(folder: Path, name: str = "dpo", **trainer: Any) -> dict[str, Any]:
    pairs = [{"prompt": f"{row} ", "chosen": answer, "rejected": answer.replace("w9", "w8")} for row, answer in SAMPLES]
    return merge(imitation(folder, name, **trainer), {"data": {"samples": pairs}})
