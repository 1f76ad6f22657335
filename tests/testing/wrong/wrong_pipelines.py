"""Pipelines, each of which breaks one law."""

import random
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import attrs
import numpy as np

from rlcore.config import config, option
from rlcore.errors import DataError
from rlcore.types import Prompt, Sample
from rlcore_transformers.data.prompts import build_prompts
from rlcore_transformers.data.samples import build_samples
from rlcore_transformers.data.sources import load_source


@config
class Prefix:
    """What every prompt begins with."""

    text: str = option("q: ", "written before every prompt")


def right(options):
    """Return a right pipeline of prompts, with options."""

    def build(source, tokenizer, data, *, max_length, what="prompts"):
        return build_prompts([options.text + row for row in source], tokenizer, data, max_length=max_length, what=what)

    return build


def triples(source, tokenizer, data, *, max_length, what="samples"):
    """Be right, and read rows of a form of its own."""
    if not len(source):
        raise DataError(f"{what} is empty")
    if not all(isinstance(row, tuple) for row in source):
        raise DataError(f"{what}: rows are (question, answer, score)")
    return build_samples([[q, a] for q, a, _ in source], tokenizer, data, max_length=max_length, what=what)


triples.example_rows = [("a" * i, "b" * (12 - i), i) for i in range(1, 11)]


@attrs.frozen
class Ranked:
    """A row of N answers to a prompt, with their scores."""

    outputs: tuple[Sample, ...]
    scores: tuple[float, ...]


def of_groups(change=lambda outputs: outputs):
    """Make a pipeline of rows (prompt, {answer: score}) and a change to the answers of each row."""

    def build(source, tokenizer, data, *, max_length, what="samples"):
        if not len(source):
            raise DataError(f"{what} is empty")
        pairs = [[prompt, answer] for prompt, answers in source for answer in answers]
        built = iter(build_samples(pairs, tokenizer, data, max_length=max_length, what=what))
        return [Ranked(change(tuple(next(built) for _ in a)), tuple(a.values())) for _, a in source]

    build.example_rows = [
        (f"{'ab' * i} ", {f"{'cd' * j}{'e' * i}": float(j - i % 3) for j in range(1, 3 + i % 3)}) for i in range(10)
    ]
    return build


ranked = of_groups()
ranked_in_lists = of_groups(list)
half_chosen = of_groups(lambda made: (*made[:-1], attrs.evolve(made[-1], action_mask=(False,) * len(made[-1].tokens))))


def dated(source, tokenizer, data, *, max_length, what="prompts"):
    rows = [f"{time.strftime('%m')}:{row}" for row in source]
    return build_prompts(rows, tokenizer, data, max_length=max_length, what=what)


def reads_none(source, tokenizer, data, *, max_length, what="samples"):
    raise DataError(f"{what}: rows are (question, answer, score)")


def of_prompts(change):
    """Make a pipeline of the right one and a change to its list of prompts."""

    def build(source, tokenizer, data, *, max_length, what="prompts"):
        return change(build_prompts(source, tokenizer, data, max_length=max_length, what=what))

    return build


def of_samples(change):
    """Make a pipeline of the right one and a change to each sample."""

    def build(source, tokenizer, data, *, max_length, what="samples"):
        made = build_samples(source, tokenizer, data, max_length=max_length, what=what)
        return [change(sample) for sample in made]

    return build


def padded(prompts):
    longest = max(len(prompt.tokens) for prompt in prompts)
    return [attrs.evolve(p, tokens=p.tokens + (0,) * (longest - len(p.tokens))) for p in prompts]


dropping = of_prompts(lambda prompts: prompts[:-1])
textless = of_prompts(lambda prompts: [attrs.evolve(p, text=p.text.encode()) for p in prompts])
empty = of_prompts(lambda prompts: [attrs.evolve(p, tokens=()) for p in prompts])
numpy_tokens = of_prompts(lambda prompts: [attrs.evolve(p, tokens=tuple(np.array(p.tokens))) for p in prompts])
listed = of_prompts(lambda prompts: [attrs.evolve(p, tokens=list(p.tokens)) for p in prompts])
beyond = of_prompts(lambda prompts: [attrs.evolve(p, tokens=(*p.tokens, 99)) for p in prompts])
sorting = of_prompts(lambda prompts: sorted(prompts, key=lambda p: len(p.tokens)))
padding = of_prompts(padded)
shuffling = of_prompts(lambda prompts: random.sample(prompts, len(prompts)))
forgetful = of_prompts(lambda prompts: [Prompt(p.text, p.tokens) for p in prompts])

short_mask = of_samples(lambda s: Sample(s.tokens, s.action_mask[:-1]))
numbers = of_samples(lambda s: Sample(s.tokens, tuple(map(int, s.action_mask))))
all_chosen = of_samples(lambda s: Sample(s.tokens, (True,) * len(s.tokens)))
none_chosen = of_samples(lambda s: Sample(s.tokens, (False,) * len(s.tokens)))


def spoiling(source, tokenizer, data, *, max_length, what="prompts"):
    prompts = build_prompts(source, tokenizer, data, max_length=max_length, what=what)
    source[0] = ""
    return prompts


def endless(source, tokenizer, data, *, max_length, what="prompts"):
    return build_prompts(source, tokenizer, data, max_length=0, what=what)


def asserting(source, tokenizer, data, *, max_length, what="prompts"):
    prompts = build_prompts(source, tokenizer, data, max_length=0, what=what)
    assert all(len(prompt.tokens) < max_length for prompt in prompts)
    return prompts


def taking_nothing(source, tokenizer, data, *, max_length, what="prompts"):
    return build_prompts(source, tokenizer, data, max_length=max_length, what=what) if len(source) else []


def indexing(source, tokenizer, data, *, max_length, what="prompts"):
    source[0]
    return build_prompts(source, tokenizer, data, max_length=max_length, what=what)


def vague(source, tokenizer, data, *, max_length, what="prompts"):
    return build_prompts(source, tokenizer, data, max_length=max_length, what="the input")


def keyed(source, tokenizer, data, *, max_length, what="prompts"):
    rows = load_source(source, what)
    made = build_prompts(rows, tokenizer, data, max_length=max_length, what=what)
    keys = [len(row) - 2 if isinstance(row, Mapping) else 0 for row in rows]
    return [attrs.evolve(prompt, tokens=prompt.tokens + (1,) * more) for prompt, more in zip(made, keys, strict=True)]


def strict(source, tokenizer, data, *, max_length, what="prompts"):
    rows = load_source(source, what)
    for row in rows:
        if isinstance(row, Mapping) and "further_key" in row:
            raise DataError(f"{what}: a row has an unknown key")
    return build_prompts(rows, tokenizer, data, max_length=max_length, what=what)


def lines_of_files(source, tokenizer, data, *, max_length, what="prompts"):
    is_file = isinstance(source, str)
    rows = Path(source).read_text(encoding="latin-1").splitlines() if is_file else source
    return build_prompts(rows, tokenizer, data, max_length=0 if is_file else max_length, what=what)


def listing(source, tokenizer, data, *, max_length, what="prompts"):
    if not isinstance(source, list):
        raise TypeError("give a list")
    return build_prompts(source, tokenizer, data, max_length=max_length, what=what)


def stripping(source, tokenizer, data, *, max_length, what="samples"):
    made = build_samples(source, tokenizer, data, max_length=max_length, what=what)
    kept = [[i for i, token in enumerate(s.tokens) if token != tokenizer.pad_token_id] for s in made]
    return [
        Sample(tuple(s.tokens[i] for i in keep), tuple(s.action_mask[i] for i in keep))
        for s, keep in zip(made, kept, strict=True)
    ]


def prompt_chosen(source, tokenizer, data, *, max_length, what="samples"):
    """Mark the last token of the prompt too."""
    made = build_samples(source, tokenizer, data, max_length=max_length, what=what)
    masks = [[False, *(a or b for a, b in pairwise(each.action_mask[1:])), True] for each in made]
    return [attrs.evolve(each, action_mask=tuple(mask)) for each, mask in zip(made, masks, strict=True)]


def turning(source, tokenizer, data, *, max_length, what="prompts"):
    tokenizer.truncation_side = "left"
    return build_prompts(source, tokenizer, data, max_length=max_length, what=what)


def seeding(source, tokenizer, data, *, max_length, what="prompts"):
    random.seed(4)
    return build_prompts(source, tokenizer, data, max_length=max_length, what=what)


def noting(source, tokenizer, data, *, max_length, what="prompts"):
    Path("rows.txt").write_text("read")
    return build_prompts(source, tokenizer, data, max_length=max_length, what=what)
