"""Build policies with an architecture, move them, and hold what they say against what was due."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlcore.errors import PluginError
from rlcore.models.settings import Seq2SeqLMConfig
from rlcore.protocols import Policy
from rlcore.testing.law import Subject, require
from rlcore.testing.small import make_bart, make_gpt2, make_llama, make_t5, make_tokenizer
from rlcore.types import PolicyOutputs, Trajectories

LENGTHS = (5, 11, 3, 8)
TOLERANCE = 1e-4
CLOSE = 1e-6
"""What two runs of one computation may differ by."""
FOLDERS = "the folder's"
"""Stands for the tokenizer that a model's folder holds."""


def examples(subject: Subject) -> list[Callable[[], PreTrainedModel]]:
    """List what makes the models that an architecture is tried with: its own `example_model`, else two of its kind.

    These are T5 and BART where its options are those of `seq2seq_lm`, or go beyond them; else GPT-2 and Llama.
    """
    try:
        own, options = getattr(subject.it.target(), "example_model", None), subject.it.config_class()
    except PluginError:  # another law says that the target cannot be imported
        own, options = None, None
    if own is not None:
        return [own]
    is_seq2seq = isinstance(options, type) and issubclass(options, Seq2SeqLMConfig)
    return [make_t5, make_bart] if is_seq2seq else [make_gpt2, make_llama]


def takes_gpt2(subject: Subject) -> bool:
    """Tell whether an architecture is tried with GPT-2 and Llama, whose parameters the laws know by name."""
    return make_gpt2 in examples(subject)


def build(
    subject: Subject, spec: Any, *, tokenizer: Any = None, changes: dict[str, Any] | None = None, **wanted: int
) -> Policy:
    """Build a policy with the architecture under test, after the same seed every time.

    Args:
        subject: the architecture.
        spec: model, configuration or folder.
        tokenizer: the kit's if left out; FOLDERS leaves it to the architecture.
        changes: options besides those the kit was given.
        wanted: `value_head`, `reference`, `q_heads`.
    """
    torch.manual_seed(3)
    target: Any = subject.it.target()
    config = subject.config(**(changes or {}))
    given = make_tokenizer() if tokenizer is None else tokenizer
    policy: Policy = target(spec, config, tokenizer=None if given is FOLDERS else given, **wanted)
    return policy


def make_dialogues(side: str = "right", columns: int = 13) -> Trajectories:
    """Make four sequences of different lengths, padded where `side` says; in one of them others speak in between."""
    mask = torch.zeros(len(LENGTHS), columns, dtype=torch.bool)
    for i, length in enumerate(LENGTHS):
        start = {"left": columns - length, "right": 0, "both": min(i, columns - length)}[side]
        mask[i, start : start + length] = True
    tokens = torch.full(mask.shape, 7)
    tokens[mask] = torch.randint(0, 30, (sum(LENGTHS),), generator=torch.Generator().manual_seed(2))
    chosen = mask & (mask.cumsum(1) > 2)
    chosen[1] &= tokens[1] % 3 != 0
    return Trajectories(tokens, mask, chosen, torch.ones(len(LENGTHS), dtype=torch.bool))


@torch.no_grad()
def say(policy: Policy, batch: Trajectories, **wanted: bool) -> PolicyOutputs:
    """Score without gradients."""
    return policy.score(batch, **wanted)


@torch.no_grad()
def move(policy: Policy) -> None:
    """Change everything that trains, as training would."""
    generator = torch.Generator().manual_seed(9)
    for parameter in policy.module.parameters():
        if parameter.requires_grad:
            parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter.dtype) * 0.1)


@contextmanager
def saved(policy: Policy) -> Iterator[Path]:
    """Save a policy for as long as the context is open."""
    with tempfile.TemporaryDirectory(prefix="rlcore-law-") as parent:
        folder = Path(parent) / "model"
        folder.mkdir()
        policy.save_pretrained(folder)
        yield folder


def require_close(
    seen: Tensor | None, expected: Tensor | None, what: str, advice: str, *, tolerance: float = TOLERANCE
) -> None:
    """Require two arrays to be of one shape and nearly equal; NaN is equal to nothing."""
    if seen is None or expected is None:
        require(seen is expected, f"{what}: one is None and the other an array; {advice}")
        return
    require(
        seen.shape == expected.shape,
        f"{what} was to be of {tuple(expected.shape)}; it is of {tuple(seen.shape)}; {advice}",
    )
    off = (seen.double() - expected.double()).abs().nan_to_num(float("inf")).flatten()
    if not len(off):
        return
    worst = int(off.argmax())
    require(
        float(off[worst]) <= tolerance,
        f"{what} was to be {float(expected.flatten()[worst]):.6f} (entry {worst} of the flattened array); it is "
        f"{float(seen.flatten()[worst]):.6f}; {advice}",
    )
