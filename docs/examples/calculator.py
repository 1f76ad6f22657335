"""Learn to use a calculator: imitate careless demonstrations, then learn from a reward for right answers.

The demonstrations show how a call is written, but only one in three copies the numbers of the question, and one in five
reports what the calculator said. A tiny model with random weights imitates them; then GRPO trains it with the tool and
a reward for right answers. Run `python calculator.py [SEED]`: two minutes on one CPU.

Share of right answers to 200 questions that are held out of the demonstrations and of GRPO, with seeds 0, 1 and 2:
.025, .035 and .06 after the imitation, .95, .965 and .965 after 60 steps of GRPO.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, PreTrainedTokenizerFast

import rlcore

WORDS = ["<pad>", "</s>", "[add(a=", ",b=", ")]", "+", "=", "!", *"0123456789"]
NUMBERS = range(10, 50)
Pair = tuple[int, int]
MODEL = GPT2Config(
    vocab_size=len(WORDS), n_positions=48, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
    attn_pdrop=0.0, bos_token_id=1, eos_token_id=1, pad_token_id=0,
)  # fmt: skip


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first number.
        b: the second number.
    """
    return a + b


def right_answer(turns: Sequence[Sequence[str]], answer: Sequence[int]) -> list[float]:
    """Return 1 for episodes whose last turn is the answer."""
    return [float(said[-1] == str(expected)) for said, expected in zip(turns, answer, strict=True)]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token for each digit and for each part of a call."""
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="!"))  # noqa: S106
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"\[add\(a=|,b=|\)\]|."), "isolated")
    backend.decoder = decoders.Fuse()
    special = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "!"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def split(rng: random.Random) -> tuple[list[Pair], list[Pair]]:
    """Return the pairs of numbers to train on, and 200 that are held out of both stages of the training."""
    pairs = [(a, b) for a in NUMBERS for b in NUMBERS]
    rng.shuffle(pairs)
    return pairs[200:], pairs[:200]


def demonstration(rng: random.Random, pairs: Sequence[Pair]) -> list[str]:
    """Return a question, a call, its result and an answer, the second and the last of which are often wrong."""
    (a, b), (x, y) = rng.choice(pairs), rng.choice(pairs)
    if rng.random() < 0.35:
        x, y = a, b
    answer = x + y if rng.random() < 0.2 else rng.randrange(20, 100)
    return [f"{a}+{b}=", f"[add(a={x},b={y})]", str(x + y), str(answer)]


def questions(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """Return the rows of pairs: a question and its answer."""
    return [{"prompt": f"{a}+{b}=", "answer": a + b} for a, b in pairs]


def train(seed: int, *, epochs: int = 12, steps: int = 60, **run: Any) -> Any:
    """Imitate the demonstrations, then learn from the reward; return the result of the second run."""
    rng, tokenizer = random.Random(seed), make_tokenizer()  # noqa: S311
    pairs, held_out = split(rng)
    imitation = rlcore.train(
        MODEL,
        tokenizer=tokenizer,
        samples=[demonstration(rng, pairs) for _ in range(4000)],
        trainer={"name": "sft", "batch_size": 64, "optimizer": {"lr": 3e-3}},
        eval={"every": 0},
        run={"epochs": epochs, "seed": seed, "name": f"calculator_sft_{seed}", "overwrite": True, **run},
    )
    return rlcore.train(
        str(imitation.run_dir / "model"),
        tokenizer=tokenizer,
        prompts=questions(pairs),
        eval_prompts=questions(held_out),
        tools=[add],
        reward_fn=right_answer,
        gen={"max_new_tokens": 8},
        trainer={"name": "grpo", "rollouts": 256, "num_generations": 8, "kl_coef": 0.0, "optimizer": {"lr": 1e-3}},
        eval={"every": 20, "at_start": True},
        run={"steps": steps, "seed": seed, "name": f"calculator_grpo_{seed}", "overwrite": True, **run},
    )


if __name__ == "__main__":
    result = train(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    print("right answers to questions that were not trained on:", result.metrics["eval/reward/mean"])
