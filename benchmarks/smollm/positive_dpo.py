"""Write positive film reviews by DPO on pairs of the model's own continuations, ranked by VADER.

The chat model continues the first words of 192 reviews four times each, with 24 tokens. The continuations of a prompt
with the highest and the lowest compound score are a pair if the scores differ by at least .3. The held-out measure is
the share of continuations of 64 held-out prompts that VADER finds positive. VADER ranks the pairs too, so the figure
shows how far DPO follows its ranking, not a second opinion.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from chat import evaluations
from reviews import prompts_from

from benchmarks.smollm.film_reviews import HELD_OUT, compounds, positive, share, split
from benchmarks.smollm.runner import Task

PROMPTS, DIFFERENCE = 192, 0.3


def main() -> None:
    """Generate the pairs, train on them, and report the share of positive reviews."""
    task = Task("positive_dpo", __doc__)
    train, _, prompts = split(task)
    own = prompts_from(train)[:PROMPTS]
    written = task.train("positive_dpo_answers", prompts=own, reward_fn=compounds, curve=())
    found = pairs(rows_of(written.run_dir))
    result = task.train(
        "positive_dpo",
        samples=found,
        eval_prompts=prompts,
        metric_fn=positive,
        curve=("loss/total", "reward/accuracy", "eval/positive"),
    )
    before, after = evaluations(result.run_dir)
    shares = [share(rows, "positive") for rows in (before, after)]
    task.report("held-out reviews that VADER finds positive", HELD_OUT, *shares)
    task.console.print(f"{len(found)} pairs of {PROMPTS} prompts")


def rows_of(run: Path) -> list[dict[str, Any]]:
    """Return all rows of a run's evaluations."""
    return [json.loads(line) for line in (run / "completions.jsonl").read_text(encoding="utf-8").splitlines()]


def pairs(rows: Iterable[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the best and the worst continuation of each prompt whose rewards differ enough."""
    groups: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for row in rows:
        groups[row["prompt"]].append((row["reward"], row["output"]))
    ranked = ((prompt, min(group), max(group)) for prompt, group in groups.items())
    return [
        {"prompt": prompt, "chosen": best[1], "rejected": worst[1]}
        for prompt, worst, best in ranked
        if best[0] - worst[0] >= DIFFERENCE
    ]


if __name__ == "__main__":
    main()
