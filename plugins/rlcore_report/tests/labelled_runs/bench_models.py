"""Tiny models for the labelled runs: trained for a few seconds to continue two letters by a short word that ends."""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from rlcore_testing.small import EOS, PAD, make_gpt2, make_llama, make_tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOWELS = "aeiou"
SHAPES = ((2, 32), (2, 32), (3, 32), (3, 48), (1, 48), (2, 48), (3, 32), (1, 64), (2, 64), (2, 40), (3, 40))
"""Layers and width of the model of each seed."""
NUM_STEPS, NUM_WORDS, RATE = 150, 48, 5e-3


def word(random_numbers: random.Random, *, low: int = 3, high: int = 8) -> str:
    """Return a word in which the letter after another is one of the six that follow it in the alphabet."""
    letters = [random_numbers.randrange(26)]
    while len(letters) < random_numbers.randint(low, high):
        letters.append((letters[-1] + random_numbers.choice((1, 1, 2, 2, 3, 5))) % 26)
    return "".join(LETTERS[i] for i in letters)


def prompts(seed: int, count: int = 16) -> list[str]:
    """Return pairs of letters."""
    random_numbers = random.Random(100 + seed)
    return ["".join(random_numbers.choices(LETTERS, k=2)) for _ in range(count)]


def base_model(seed: int) -> Any:
    """Return a model that writes words: a GPT-2 for even seeds, a Llama for odd ones."""
    return copy.deepcopy(_trained(seed))


@functools.cache
def _trained(seed: int) -> Any:
    random_numbers = random.Random(seed)
    return _fitted(_untrained(seed), lambda: word(random_numbers, low=5, high=10))


def teacher(seed: int, *, is_trained: bool = True) -> str:
    """Return the folder of a teacher that answers four letters by a word, or of one with random weights."""
    return _teacher(seed, is_trained).name


@functools.cache
def _teacher(seed: int, is_trained: bool) -> TemporaryDirectory[str]:
    random_numbers, model = random.Random(seed + 1000), _untrained(seed + 1000)
    if is_trained:
        _fitted(model, lambda: "".join(random_numbers.choices(LETTERS, k=4)) + ". " + word(random_numbers))
    folder = TemporaryDirectory(prefix="teacher-")
    model.save_pretrained(folder.name)
    make_tokenizer().save_pretrained(folder.name)
    return folder


def _fitted(model: Any, text: Callable[[], str]) -> Any:
    tokenizer = make_tokenizer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    model.train()
    for _ in range(NUM_STEPS):
        rows = [tokenizer(text())["input_ids"] for _ in range(NUM_WORDS)]
        longest = max(map(len, rows)) + 1
        ids = torch.tensor([row + [EOS] + [PAD] * (longest - len(row) - 1) for row in rows])
        labels = ids.masked_fill(ids == PAD, -100)
        model(input_ids=ids, attention_mask=(ids != PAD).long(), labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def _untrained(seed: int) -> Any:
    layers, width = SHAPES[seed % 1000]
    if seed % 2:
        return make_llama(layers=layers, width=width, seed=seed)
    return make_gpt2(layers=layers, width=width, seed=seed)


def base_scorer(seed: int) -> Any:
    """Return a model with random weights and one score for a text."""
    config = _untrained(seed).config
    torch.manual_seed(seed)
    config.num_labels = 1
    return AutoModelForSequenceClassification.from_config(config).eval()


def base_classifier(seed: int) -> Any:
    """Return a model with random weights and two scores for each token."""
    config = _untrained(seed).config
    torch.manual_seed(seed)
    config.num_labels = 2
    return AutoModelForTokenClassification.from_config(config).eval()
