"""Film reviews for the tasks of this folder: their first words as prompts, and VADER's judgement of what is written.

VADER (Hutto and Gilbert 2014) is a lexicon of words with rules; its compound score of .05 and more means positive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chat import interval
from reviews import Review, prompts_from, read_reviews

from benchmarks.smollm.runner import Interval, Task

HELD_OUT = 64


def split(task: Task) -> tuple[list[Review], list[Review], list[str]]:
    """Return the reviews of the training, the held-out ones, and 64 prompts from these; or end the task."""
    train, held_out = read_reviews(task.find("rt_polarity.jsonl"), task.options.seed)
    compounds([])
    return train, held_out, prompts_from(held_out)[:HELD_OUT]


def compounds(samples: Sequence[str]) -> list[float]:
    """Return VADER's compound score of each text, -1 to 1."""
    try:
        from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer
    except ImportError:
        raise SystemExit("the task is skipped: vaderSentiment is not installed; pip install vaderSentiment") from None
    judge = SentimentIntensityAnalyzer()
    return [float(judge.polarity_scores(sample)["compound"]) for sample in samples]


def positive(samples: Sequence[str]) -> dict[str, list[float]]:
    """Return, as `metric_fn`, whether VADER finds each prompt with its continuation positive."""
    return {"positive": [float(compound >= 0.05) for compound in compounds(samples)]}


def share_positive(rows: Sequence[dict[str, Any]]) -> Interval:
    """Return the share of positive rows of an evaluation, and its interval."""
    return interval(sum(row["positive"] for row in rows), len(rows))
