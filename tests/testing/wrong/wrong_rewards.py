"""Rewards, each of which breaks one law, and right ones."""

import math
import os
import random
from datetime import datetime
from pathlib import Path

from rlcore.config import config, option


@config
class Words:
    """What is rewarded."""

    word: str = option("yes", "counted in every output")


def counting(options):
    """Return a right reward, with options."""

    def count(outputs):
        return [float(output.count(options.word)) for output in outputs]

    return count


def right(outputs, answer, **columns):
    """Be right, and need a column."""
    return [None if "@" in output else float(output == given) for output, given in zip(outputs, answer, strict=True)]


async def right_later(texts):
    """Be right, at a time of its own."""
    return [[0.5] * 0 or float(len(text)) for text in texts]


def too_few(outputs):
    return [1.0 for output in outputs][1:]


def text(outputs):
    return ["good" for _ in outputs]


def infinite(outputs):
    return [math.inf if output == "42" else 0.0 for output in outputs]


def silent(outputs):
    return [None for _ in outputs]


_DRAWS = random.Random(0)


def random_one(outputs):
    return [_DRAWS.random() for _ in outputs]


def dated(outputs):
    return [float(output.count(str(datetime.now().year))) + datetime.now().month for output in outputs]  # noqa: DTZ005


def hashing(outputs):
    return [float(hash(output) % 1000) for output in outputs]


def ranked(outputs):
    return [float(i) for i, _ in enumerate(outputs)]


def whitened(outputs):
    lengths = [len(output) for output in outputs]
    return [length - sum(lengths) / len(lengths) for length in lengths]


def first_letter(outputs):
    return [float(ord(output[0])) for output in outputs]


def averaging(outputs):
    return [sum(map(ord, output)) / len(output) for output in outputs]


def counting_columns(outputs, **columns):
    return [float(len(columns)) for _ in outputs]


class Closing:
    """Count the letters, also after a close."""

    def __init__(self):
        self.closed = False

    def __call__(self, outputs):
        return [float(len(output)) for output in outputs]

    def close(self):
        self.closed = True


class ClosedForGood(Closing):
    def __call__(self, outputs):
        return [0.0 if self.closed else score for score in super().__call__(outputs)]


closing = Closing()
closed_for_good = ClosedForGood()


KNOWN = {}


def remembering(outputs, answer):
    """Remember numbers by the output alone."""
    for output, given in zip(outputs, answer, strict=True):
        KNOWN.setdefault(output, float(given in output))
    return [KNOWN[output] for output in outputs]


def of_first_rank(outputs):
    return [len(output) * float(os.environ.get("RANK", "0") == "0") for output in outputs]


def seeding(outputs):
    random.seed(4)
    return [float(len(output)) for output in outputs]


def noting(outputs):
    Path("rewards.txt").write_text(str(outputs))
    return [float(len(output)) for output in outputs]
