"""Teach a chat model to use a calculator: SFT on careless demonstrations, then GRPO with a reward for right answers.

The questions are sums of two numbers of four digits. Each names the calculator and the form of a call. Half of the
demonstrations call it with the numbers of the question, the others with the numbers of another one; half report what it
returned, the others a wrong number. The held-out measure is the share of 64 other sums whose last turn contains the
right number and no other number, before, after SFT, and after GRPO.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from calculator import add
from chat import evaluations, interval, written

from benchmarks.smollm.runner import Task

QUESTION = "What is {} + {}? You may use the calculator: [add(a=1, b=2)]"
HELD_OUT, TRAINED = 64, 512


def main() -> None:
    """Imitate, learn from the reward, and report the right answers before, between and after."""
    task = Task("calculator", __doc__)
    rng = random.Random(task.options.seed)
    sums = [(rng.randrange(1000, 5000), rng.randrange(1000, 5000)) for _ in range(HELD_OUT + TRAINED)]
    held_out, trained = questions(sums[:HELD_OUT]), sums[HELD_OUT:]
    shared: dict[str, Any] = {"tools": [add], "eval_prompts": held_out, "reward_fn": right}
    curve = ("loss/total", "reward/mean", "eval/reward/mean")
    sft = task.train("calculator", samples=[demonstration(rng, trained) for _ in trained], curve=curve, **shared)
    grpo = task.train(
        "calculator_grpo", sft.run_dir / "model", prompts=questions(trained), curve=curve, **shared,
    )  # fmt: skip
    before, between = evaluations(sft.run_dir)
    _, after = evaluations(grpo.run_dir)
    shares = [interval(sum(row["reward"] for row in rows), len(rows)) for rows in (before, between, after)]
    task.report("right answers to held-out sums", HELD_OUT, shares[0], shares[2])
    task.console.print(f"after SFT:  {written(shares[1])}", markup=False)


def right(turns: Sequence[Sequence[str]], answer: Sequence[int]) -> list[float]:
    """Return 1 for episodes whose last turn has the answer and no other number."""
    return [
        float({each.replace(",", "") for each in re.findall(r"\d[\d,]*\d|\d", said[-1])} == {str(expected)})
        for said, expected in zip(turns, answer, strict=True)
    ]


def questions(sums: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """Return the rows of sums: a conversation of one question, and its answer."""
    return [{"prompt": [{"role": "user", "content": QUESTION.format(a, b)}], "answer": a + b} for a, b in sums]


def demonstration(rng: random.Random, sums: Sequence[tuple[int, int]]) -> list[dict[str, str]]:
    """Return a conversation with a call and an answer, each of which is wrong in one of two cases."""
    (a, b), (x, y) = rng.choice(sums), rng.choice(sums)
    if rng.random() < 0.5:
        x, y = a, b
    answer = x + y if rng.random() < 0.5 else rng.randrange(2000, 10000)
    said = QUESTION.format(a, b), f"[add(a={x}, b={y})]", str(x + y), f"The sum is {answer}."
    roles = "user", "assistant", "tool", "assistant"
    return [{"role": role, "content": content} for role, content in zip(roles, said, strict=True)]


if __name__ == "__main__":
    main()
