"""Teach a tiny model from random weights the form of its answers, with two rewards that are chosen by name.

    python short_sentences.py [--steps 60] [--seed 0] [--out runs]

An answer should be one sentence, letters and blanks that end with a full stop (`regex`), of at most 12 tokens
(`length`). GRPO learns both from 64 answers a step. The run takes about ten CPU seconds, without
downloads: the tokenizer has one token for each character.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, PreTrainedTokenizerFast

import rlcore

CHARACTERS = "abcdefghijklmnopqrstuvwxyz .?!"
END, PAD = "<end>", "<pad>"
REWARDS = {
    "sentence": {"fn": "regex", "pattern": "[a-z][a-z ]*[.]", "mode": "fullmatch"},
    "short": {"fn": "length", "cap": 12, "slack": 12, "weight": 0.2},
}


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token for each character."""
    vocabulary = {token: i for i, token in enumerate([*CHARACTERS, END, PAD])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END, pad_token=PAD)


def main() -> None:
    """Train, and print the rewards of the first and the last steps with some answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    options = parser.parse_args()
    tokenizer = make_tokenizer()
    size = len(tokenizer)
    result = rlcore.train(
        GPT2Config(
            vocab_size=size, n_layer=2, n_embd=64, n_head=2, n_positions=64, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
            bos_token_id=tokenizer.eos_token_id, eos_token_id=tokenizer.eos_token_id,
        ),
        tokenizer=tokenizer,
        trainer={"name": "grpo", "rollouts": 64, "num_generations": 32, "optimizer": {"lr": 3e-3}},
        prompts=["the cat ", "a dog ", "the old man ", "my house "],
        reward_fn=REWARDS,
        gen={"max_new_tokens": 24},
        run={"root": str(options.out), "name": "short-sentences", "steps": options.steps, "seed": options.seed},
        loggers=[],
    )  # fmt: skip
    lines = (result.run.dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if "reward/mean" in row]
    for row in (rows[0], rows[-1]):
        named = ", ".join(f"{name} {row[f'reward/{name}']:.2f}" for name in REWARDS)
        print(f"step {row['step']:3}: {named}, {row['response/length_mean']:.1f} tokens")
    for line in (result.run.dir / "completions.jsonl").read_text(encoding="utf-8").splitlines()[-4:]:
        print(repr(json.loads(line)["output"]))


if __name__ == "__main__":
    main()
