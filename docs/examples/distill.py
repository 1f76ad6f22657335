"""Distil a small student from a larger teacher: number words from English into German.

    python distill.py [--seed 0] [--teacher-epochs 4] [--steps 150] [--out runs]

    four thousand two hundred thirty one =  ->  vier tausend zwei hundert ein und dreißig

The teacher, a Llama of 0.44 M parameters, is trained on 3000 pairs of numbers below 10,000. There are 300 other pairs
for a student of 0.11 M parameters, which first imitates these (`--start-steps`), and is then trained further with the
same number of steps by
  * `sft` on the pairs,
  * `distill` on the pairs: the forward KL to the teacher,
  * `distill` with half of the rows sampled by the student (Jensen-Shannon, beta 0.5),
  * `distill_prompts` on the student's own translations of 3000 numbers without any (reverse KL), and
  * `distill_prompts` on the teacher's translations of these (sequence-level).
Measured is the share of completely correct greedy translations of 500 other numbers:

    seed   teacher   before   sft    forward KL   half on-policy   on-policy   sequence-level
    0      .996      .824     .938   .936         .928             .958        .984
    1      .994      .804     .930   .932         .924             .976        .990
    2      .996      .922     .946   .942         .940             .972        .994

The teacher's distributions on the 300 pairs, which the teacher knows almost with certainty, are worth no more than the
pairs. The 3000 further prompts are: the student's own translations of them, and even more so the teacher's.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast
from translation_t5 import ENGLISH, ENGLISH_TENS, GERMAN, GERMAN_TENS, english, folder_of, german, metric_fn

import rlcore

NUM_HELD_OUT, NUM_TAUGHT, NUM_PAIRS, NUM_PROMPTS = 500, 3000, 300, 3000
COMMON = {"batch_size": 32, "optimizer": {"lr": 3e-3, "scheduler": "linear"}}
FURTHER = {"lr": 1e-3, "scheduler": "linear"}
GEN = {"max_new_tokens": 14}
EVAL = {"gen": {"temperature": 0}, "batch_size": 500, "show": 0}
WAYS: dict[str, dict[str, Any]] = {
    "sft": {"name": "sft"},
    "forward KL": {"name": "distill", "divergence": "forward_kl", "on_policy": 0.0},
    "half on-policy": {"name": "distill", "divergence": "jsd", "on_policy": 0.5},
    "on-policy": {"name": "distill_prompts", "divergence": "reverse_kl"},
    "sequence-level": {"name": "distill_prompts", "divergence": "nll", "on_policy": 0.0},
}


def main() -> None:
    """Train the teacher and the students, and print how many translations of each are correct."""
    options = parse_options()
    count = NUM_HELD_OUT + NUM_TAUGHT + NUM_PAIRS + NUM_PROMPTS
    numbers = random.Random(options.seed).sample(range(1, 10_000), count)  # noqa: S311 (not used for secrets)
    held_out, numbers = numbers[:NUM_HELD_OUT], numbers[NUM_HELD_OUT:]
    taught, numbers = numbers[:NUM_TAUGHT], numbers[NUM_TAUGHT:]
    pairs, prompts = numbers[:NUM_PAIRS], numbers[NUM_PAIRS:][:NUM_PROMPTS]
    common: dict[str, Any] = {
        "tokenizer": tokenizer(), "eval_prompts": rows(held_out), "metric_fn": metric_fn, "gen": GEN, "eval": EVAL,
    }  # fmt: skip
    teacher = rlcore.train(
        llama(width=128, layers=2), trainer={"name": "sft", **COMMON}, samples=samples(taught),
        run={"epochs": options.teacher_epochs, "seed": options.seed, **folder_of(options.out, "distill-teacher")},
        **common,
    )  # fmt: skip
    start = rlcore.train(
        llama(width=64, layers=2), trainer={"name": "sft", **COMMON}, samples=samples(pairs),
        run={"steps": options.start_steps, "seed": options.seed, **folder_of(options.out, "distill-start")}, **common,
    )  # fmt: skip
    table = Table("", "right", title=f"{NUM_HELD_OUT} held-out numbers")
    for label, result in (("teacher", teacher), ("student, before", start)):
        table.add_row(label, f"{result.metrics['eval/right']:.3f}")
    for label, way in WAYS.items():
        given = {"prompts": rows(prompts)} if way["name"] == "distill_prompts" else {"samples": samples(pairs)}
        named = {} if way["name"] == "sft" else {"teacher": str(teacher.run_dir / "model")}
        student = rlcore.train(
            str(start.run_dir / "model"), trainer={**COMMON, "optimizer": FURTHER, **way, **named},
            run={"steps": options.steps, "seed": options.seed, **folder_of(options.out, label.replace(" ", "-"))},
            **given, **common,
        )  # fmt: skip
        table.add_row(label, f"{student.metrics['eval/right']:.3f}")
    Console().print(table)


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the numbers and of every training")
    parser.add_argument("--teacher-epochs", type=float, default=4, help="passes of the teacher over its pairs")
    parser.add_argument("--start-steps", type=int, default=200, help="steps of the student before distillation")
    parser.add_argument("--steps", type=int, default=150, help="further steps of the student, in each way")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder that holds the runs")
    return parser.parse_args()


def prompt(number: int) -> str:
    """Return the prompt of a number."""
    return f"{english(number)} ="


def rows(numbers: list[int]) -> list[dict[str, object]]:
    """Return prompts with a column that the metric function receives."""
    return [{"prompt": prompt(number), "number": number} for number in numbers]


def samples(numbers: list[int]) -> list[list[str]]:
    """Return demonstrations."""
    return [[prompt(number), f" {german(number)}"] for number in numbers]


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token for each word."""
    words = [*ENGLISH, *ENGLISH_TENS, "hundred", "thousand", *GERMAN, *GERMAN_TENS, "hundert", "tausend", "und", "eins"]
    vocabulary = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", "=", *dict.fromkeys(words)])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))  # noqa: S106 (no password but a token)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"  # noqa: S106 (the same)
    )  # fmt: skip


def llama(*, width: int, layers: int) -> LlamaConfig:
    """Return the configuration of a Llama."""
    return LlamaConfig(
        vocab_size=len(tokenizer()), hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=64, tie_word_embeddings=True,
        pad_token_id=0, bos_token_id=None, eos_token_id=1,
    )  # fmt: skip


if __name__ == "__main__":
    main()
