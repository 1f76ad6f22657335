"""Teach a small GPT-2 the form of GSM8K's answers, not their content: SFT from random weights, then GRPO with a rule.

    python gsm8k_format.py GSM8K.jsonl [--seed 0] [--sft-epochs 2] [--steps 200] [--out runs] [--quick]

GSM8K.jsonl contains one problem per line, {"question": ..., "answer": ...} (Cobbe et al. 2021, arXiv:2110.14168). The
rule gives 1 to an answer whose lines each contain a calculation, `<<48/2=24>>`, except the last, which is `#### 72`;
GRPO subtracts up to 1 from long answers (`overlong_buffer`). Neither looks at the numbers: so small a model does not
learn to calculate. Means of some metrics over the first, middle and last five of 200 rounds (seed 0, 180 CPU seconds):

    rounds        form    truncated   tokens   groups without spread   group std   KL
    1 to 5        .188    .031        45.6     .10                     .395        6.3
    98 to 102     .819    .000        34.2     .20                     .337        16.2
    196 to 200    .856    .000        31.5     .35                     .282        9.2
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from statistics import mean

from reviews import folder_of, model_config, train_tokenizer
from rich.console import Console
from rich.table import Table

import rlcore

ANSWER = re.compile(r"(.*<<[^<>=]+=[^<>=]+>>.*\n)+#### -?[\d,]+(\.\d+)?")
LONGEST = 250
"""Characters of the questions and answers that are used; of 7473 problems 3004 are short enough."""
GRPO = {
    "name": "grpo",
    "rollouts": 32,
    "num_generations": 8,
    "overlong_buffer": 0.25,  # the penalty begins at three quarters of gen.max_new_tokens
    "kl_coef": 0.02,
    "optimizer": {"lr": 3e-4, "scheduler": "linear"},
}
METRICS = {
    "form": "reward/mean", "truncated": "response/truncated_fraction", "tokens": "response/length_mean",
    "without spread": "group/zero_spread_fraction", "group std": "group/reward_std_mean", "KL": "kl/mean",
    "entropy": "policy/entropy", "gradient": "grad/norm",
}  # fmt: skip


def formed(outputs: list[str]) -> list[float]:
    """Return 1 for each answer that has the form of GSM8K's, else 0."""
    return [float(ANSWER.fullmatch(output) is not None) for output in outputs]


def main() -> None:
    """Train by SFT and GRPO, and print the course of GRPO."""
    options = parse_options()
    problems = [json.loads(line) for line in options.problems.read_text(encoding="utf-8").splitlines()]
    rows = [(each["question"] + "\n", each["answer"]) for each in problems]
    rows = [row for row in rows if max(map(len, row)) <= LONGEST][: 100 if options.quick else None]
    tokenizer = train_tokenizer([text for row in rows for text in row], vocab_size=2000)
    imitation = rlcore.train(
        model_config(tokenizer, layers=1 if options.quick else 3, width=32 if options.quick else 128),
        tokenizer=tokenizer,
        trainer={"name": "sft", "batch_size": 32, "optimizer": {"lr": 2e-3, "scheduler": "linear", "warmup_steps": 20}},
        samples=[list(row) for row in rows],
        run={"epochs": options.sft_epochs, "seed": options.seed, **folder_of(options.out, "gsm8k-sft")},
    )
    result = rlcore.train(
        str(imitation.run_dir / "model"),
        trainer=GRPO,
        reward_fn=formed,
        prompts=[question for question, _ in rows],
        gen={"max_new_tokens": 32 if options.quick else 96},
        run={"steps": options.steps, "seed": options.seed, **folder_of(options.out, "gsm8k-grpo")},
    )
    lines = (result.run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rounds = [row for row in map(json.loads, lines) if "kl/mean" in row]
    table, part = Table("rounds", *METRICS, title="Means over rounds"), max(len(rounds) // 40, 1)
    for first in (0, (len(rounds) - part) // 2, len(rounds) - part):
        shown = rounds[first : first + part]
        means = (mean(row[name] for row in shown) for name in METRICS.values())
        table.add_row(f"{shown[0]['step']} to {shown[-1]['step']}", *(f"{each:.3f}" for each in means))
    Console().print(table)


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", type=Path, help="JSONL file with the fields question and answer")
    parser.add_argument("--seed", type=int, default=0, help="of both trainings")
    parser.add_argument("--sft-epochs", type=float, default=2, help="passes over the problems before GRPO")
    parser.add_argument("--steps", type=int, default=200, help="rounds of GRPO")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder that holds the runs")
    parser.add_argument("--quick", action="store_true", help="try the script out: 100 problems and a tiny model")
    return parser.parse_args()


if __name__ == "__main__":
    main()
