"""Film reviews for the tasks of this folder: their first words as prompts, and two judges of what is written.

VADER (Hutto and Gilbert 2014) is a lexicon of words with rules; its compound score of .05 and more means positive. It
knows nothing of films: of the favourable reviews themselves, cut to 22 words, it finds .65 positive, of the others .42.
The other judge is the logistic regression of docs/examples/reviews.py, trained on labelled reviews.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from chat import interval
from reviews import Review, prompts_from, read_reviews, texts, train_classifier

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


def judges(
    task: Task, train: list[Review], held_out: list[Review]
) -> Callable[[Sequence[str]], dict[str, list[float]]]:
    """Return a `metric_fn`: `positive` by VADER, and `favourable` by a classifier; print the classifier's accuracy.

    Args:
        task: the task in progress.
        train: the reviews that the classifier is trained on; nothing else may be, or it would agree for that reason.
        held_out: the reviews of the accuracy.
    """
    classifier = train_classifier(train)
    accuracy = classifier.score(texts(held_out), [review["label"] for review in held_out])
    task.console.print(f"classifier: {accuracy:.3f} of {len(held_out)} held-out reviews judged rightly")

    def judged(samples: Sequence[str]) -> dict[str, list[float]]:
        favourable = [float(each) for each in classifier.predict(list(samples))]
        return {**positive(samples), "favourable": favourable}

    return judged


def share(rows: Sequence[dict[str, Any]], name: str) -> Interval:
    """Return the share of rows of an evaluation that have a property, and its interval."""
    found: Interval = interval(sum(row[name] for row in rows), len(rows))
    return found
