"""Learn the questions about Alice's brothers and sisters of reasoning-gym from a reward for right answers.

"Alice has 3 sisters and she also has 2 brothers. How many sisters does Alice's brother have?" (4: Alice is one, too.)
A tiny model with random weights first imitates demonstrations whose answers are random digits, so that it learns the
form of an answer and nothing else. Then GRPO trains it with the family `aiw` of reasoning-gym, which scores answers.
Run `python alice.py [SEED]`.
"""

from __future__ import annotations

import random
import re
import sys
from typing import Any

from reasoning_gym import create_dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, PreTrainedTokenizerFast

import rlcore

WORD = r"\w+|[^\w\s]"
OPTIONS = {"task_type_weights": [0.5, 0.5, 0.0]}  # siblings and friends, no colleagues
TASK: dict[str, Any] = {
    "families": {"aiw": {"options": OPTIONS}}, "instructions": None, "answer_tag": None, "train_rows": 1000,
    "eval_rows": 200,
}  # fmt: skip


def questions() -> list[str]:
    """Return the questions to train on. Rows to evaluate on have the first seeds, and those to train on the next."""
    held_out, last = TASK["eval_rows"], TASK["eval_rows"] + TASK["train_rows"]
    asked = [str(create_dataset("aiw", seed=seed, size=1, **OPTIONS)[0]["question"]) for seed in range(last)]
    return [question for question in asked[held_out:] if question not in asked[:held_out]]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token for each word of the questions and each digit."""
    known = sorted({word for question in questions() for word in re.findall(WORD, question)} | set("0123456789"))
    words = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", *known])}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))  # noqa: S106
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(WORD), "isolated")]
    )
    backend.decoder = decoders.Fuse()
    special = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def train(seed: int, *, epochs: int = 2, steps: int = 300, **run: Any) -> Any:
    """Learn the form of answers, then the answers; return the result of the second run."""
    rng, tokenizer = random.Random(seed), make_tokenizer()  # noqa: S311
    model = GPT2Config(
        vocab_size=len(tokenizer), n_positions=64, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=1, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    form = rlcore.train(
        model,
        tokenizer=tokenizer,
        samples=[[question, rng.choice("0123456789")] for question in questions()],
        trainer={"name": "sft", "batch_size": 50, "optimizer": {"lr": 3e-3}},
        eval={"every": 0},
        run={"epochs": epochs, "seed": seed, "name": f"alice_form_{seed}", "overwrite": True, **run},
    )
    return rlcore.train(
        str(form.run_dir / "model"),
        tokenizer=tokenizer,
        environment={"name": "reasoning_gym", **TASK},
        gen={"max_new_tokens": 1},  # the library also scores answers that contain the right one, such as 123456
        trainer={
            "name": "grpo", "rollouts": 256, "num_generations": 8, "kl_coef": 0.0, "optimizer": {"lr": 1e-3},
        },
        eval={"every": 20, "at_start": True},
        run={"steps": steps, "seed": seed, "name": f"alice_grpo_{seed}", "overwrite": True, **run},
    )  # fmt: skip


if __name__ == "__main__":
    result = train(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    print("right answers to questions that were not trained on:", result.metrics["eval/episode/success"])
