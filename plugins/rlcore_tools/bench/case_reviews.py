"""PPO on film reviews with favourable words as the reward and a KL penalty; without the reviews, on made-up ones."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

METRIC, BETTER = "reward/mean", "more"
FILE = "rt_polarity.jsonl"
FAVOURABLE = {"good", "great", "best", "funny", "fun", "moving", "charming", "beautiful", "perfect", "love"}
WORDS = 1500


def train(folder: Path, *, seed: int, quick: bool, data: Path | None) -> None:
    """Imitate reviews, then learn to write favourable ones, with a GPT-2 of two layers, 96 wide."""
    from transformers import GPT2Config

    import rlcore

    texts = read_texts(data)[: 640 if quick else 2400]
    tokenizer = make_tokenizer(texts)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=128, n_embd=96, n_layer=2, n_head=4,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    off = {"at_end": False}
    run = {"root": str(folder), "seed": seed}
    imitation = rlcore.train(
        config, tokenizer=tokenizer, trainer={"name": "sft", "batch_size": 32, "optimizer": {"lr": 3e-3}},
        samples=texts, run={**run, "name": "imitation", "epochs": 1}, eval=off, checkpoint=off, loggers=[],
    )  # fmt: skip
    imitation.save_pretrained(folder / "base")
    prompts = [" ".join(text.split()[:3]) for text in texts[:16]]
    rlcore.train(
        str(folder / "base"),
        trainer={
            "name": "ppo", "rollouts": 128, "batch_size": 64, "epochs": 2, "kl_coef": 0.02,
            "optimizer": {"lr": 1e-3, "scheduler": "linear"},
        },
        reward_fn=favourable, prompts=prompts * 8, gen={"max_new_tokens": 24},
        run={**run, "name": "run", "steps": 3 if quick else 12}, eval=off, checkpoint=off, loggers=[],
    )  # fmt: skip


def favourable(samples: list[str]) -> list[float]:
    """Return 1 for each text with a favourable word, else 0."""
    return [float(not FAVOURABLE.isdisjoint(text.split())) for text in samples]


def read_texts(folder: Path | None) -> list[str]:
    """Return the reviews of a folder, or made-up ones of a few words."""
    if folder is not None:
        with (folder / FILE).open(encoding="utf-8") as file:
            return [json.loads(line)["text"] for line in file]
    choose = random.Random(0).choice  # noqa: S311  no secret
    adjectives = [*sorted(FAVOURABLE), *("dull", "flat", "loud", "long", "odd", "plain", "slow", "tired", "weak")]
    nouns = ("film", "plot", "cast", "story", "ending", "music", "script", "scene")
    return [
        f"the {choose(nouns)} is a {choose(adjectives)} one and the {choose(nouns)} seems {choose(adjectives)} ."
        for _ in range(5000)
    ]


def make_tokenizer(texts: list[str]) -> Any:
    """Return a tokenizer of the most frequent words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    counts = Counter(word for text in texts for word in text.split())
    words = ["<end>", "<pad>", "<unk>", *(word for word, _ in counts.most_common(WORDS))]
    named = {"eos_token": "<end>", "pad_token": "<pad>", "unk_token": "<unk>"}
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=named["unk_token"]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, **named)
