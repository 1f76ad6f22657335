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
    """Return the reviews to train on, those held out, and 64 prompts that only held-out reviews begin with.

    It ends the task with the reason if the reviews or VADER are absent.
    """
    compounds([])
    train, held_out = read_reviews(task.find("rt_polarity.jsonl"), task.options.seed)
    known = {prompt.lower() for prompt in prompts_from(train)}
    return train, held_out, [each for each in prompts_from(held_out) if each.lower() not in known][:HELD_OUT]


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
    share: Interval = interval(sum(row["positive"] for row in rows), len(rows))
    return share
