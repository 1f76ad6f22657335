"""Fused GELU kernels, and activation checkpointing.

Also in this file: the probe that decides whether a technique may be used with a model: a small batch must come out
the same; run a padded batch in groups of similar length, if that saves more time than the additional forward passes
take.
"""

from __future__ import annotations

import ctypes
import os
import platform
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import FastGELUActivation, NewGELUActivation

from rlcore.errors import ModelError
from rlcore.ops import eval_mode
from rlcore_transformers.models.freezing import HeadlessSeq2Seq, vocabulary_size
from rlcore_transformers.models.hub import first_line
from rlcore_transformers.models.speed import TechniqueRefused


def fuse_activations(model: nn.Module) -> None:
    """Replace GELU modules written out in Python by torch's fused kernel of the same function."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, (NewGELUActivation, FastGELUActivation)):
                setattr(module, name, nn.GELU(approximate="tanh"))


def has_fused_activations(model: nn.Module) -> bool:
    """Return whether `model` has GELU modules that run in the fused kernel."""
    return any(isinstance(module, nn.GELU) and module.approximate == "tanh" for module in model.modules())


def checkpoint_activations(model: PreTrainedModel | HeadlessSeq2Seq) -> None:
    """Let `model` recompute activations in the backward pass, and return freed memory to the system at once."""
    hand_back_freed()
    with warnings.catch_warnings():
        # The name that replaces this one is younger than the oldest transformers we take.
        warnings.simplefilter("ignore", FutureWarning)
        model.gradient_checkpointing_enable({"use_reentrant": False})


MMAP_THRESHOLD, LARGE = -3, 1 << 20
"""glibc's parameter for the size above which a block is mapped separately, and the value to set, in bytes."""


def hand_back_freed() -> None:
    """Make glibc return every block of `LARGE` bytes or more to the system as soon as it is freed, in this process.

    By default glibc raises this threshold to the largest block freed so far, up to 32 MiB, and the holes between
    tensors can then take more memory than the tensors. The cost is that the system clears each new block. A threshold
    set in the environment is kept; other C libraries are not changed.
    """
    is_set = "MALLOC_MMAP_THRESHOLD_" in os.environ or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if platform.libc_ver()[0] == "glibc" and not is_set:
        ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, LARGE)


FAILURES = (ModelError, TypeError, ValueError, RuntimeError, AttributeError, KeyError, IndexError)
"""What models raise at a batch laid out in a way that they do not support."""


@contextmanager
def probing(model: PreTrainedModel) -> Iterator[None]:
    """Run a probe: in evaluation mode, without gradients, every failure of the model turned into `TechniqueRefused`.

    Raises:
        TechniqueRefused: the model failed inside the context, or the probe refused it.
    """
    with torch.no_grad(), eval_mode(model):
        try:
            yield
        except FAILURES as error:
            raise TechniqueRefused(f"{type(error).__name__}: {first_line(error)}") from error


def probe_tokens(model: PreTrainedModel, columns: int) -> Tensor:
    """Return two rows of different tokens of the model's vocabulary: long[2, columns]."""
    return (torch.arange(2 * columns, device=model.device).reshape(2, columns) * 7 + 1) % vocabulary_size(model)


def tolerance(model: PreTrainedModel, low_precision: float = 0.05) -> float:
    """Return the relative difference that a different order of sums may cause in the model's precision."""
    return 1e-4 if model.dtype == torch.float32 else low_precision


def require_same(model: PreTrainedModel, what: str, seen: Tensor, expected: Tensor, *, offset: float = 0.0) -> None:
    """Refuse a technique whose result differs from the model's own by more than rounding; NaN always differs.

    Args:
        model: the model, whose precision sets the tolerance.
        what: name of the result, for the reason.
        seen: the technique's result.
        expected: the model's own.
        offset: added to the largest expected number, by which differences are divided.

    Raises:
        TechniqueRefused: they differ.
    """
    error, largest = float((seen - expected).abs().max()), float(expected.abs().max())
    if not error <= tolerance(model) * (offset + largest):
        raise TechniqueRefused(f"{what} differ by {error:.2g} of {largest:.2g}")


T = TypeVar("T")

PASS = 128
"""Tokens of padding that take about as long as one more forward pass: on a CPU 280 in a model of 2 layers, 64 wide, and
40 in one of 4 layers, 256 wide. Other devices have not been measured, and batches are not split there."""


def in_groups(
    run: Callable[[Tensor, Tensor, Tensor], T],
    join_outputs: Callable[[list[T], Tensor], T],
    tokens: Tensor,
    mask: Tensor,
    action_mask: Tensor,
) -> T:
    """Run a padded forward pass in the groups that take the least time.

    Args:
        run: forward pass over tokens, mask and action mask; returns outputs of N chosen tokens, in row-major order.
        join_outputs: concatenates the outputs of several passes and reorders the tokens by long[N].
        tokens: long[B, T].
        mask: bool[B, T].
        action_mask: bool[B, T].
    """
    if tokens.device.type != "cpu":
        return run(tokens, mask, action_mask)
    real = mask | action_mask  # a token that is only scored, after the end of a sequence, is not in the mask
    lengths, order = real.sum(1).sort(descending=True, stable=True)
    cuts = cut(lengths.tolist(), PASS)
    if len(cuts) == 1:
        return run(tokens, mask, action_mask)
    numbers = torch.zeros_like(tokens)
    numbers[action_mask] = torch.arange(int(action_mask.sum()))
    parts, outputs = [], []
    for rows in order.tensor_split(cuts[1:]):
        used = real[rows].any(0).nonzero()[:, 0]
        columns = slice(int(used[0]), int(used[-1]) + 1) if len(used) else slice(0, 1)
        chosen = action_mask[rows, columns]
        parts.append(numbers[rows, columns][chosen])
        outputs.append(run(tokens[rows, columns], mask[rows, columns], chosen))
    return join_outputs(outputs, torch.cat(parts).argsort())


def cut(lengths: Sequence[int], each: int = PASS) -> list[int]:
    """Split sequences, sorted longest first, into groups with the least total cost.

        cost = sum over groups of (sequences * longest + each)

    Args:
        lengths: B numbers of tokens, in descending order.
        each: tokens of padding that take as long as one more group.

    Returns:
        The index of the first sequence of each group, starting with 0.
    """
    count = len(lengths)
    if not count or lengths[0] * count - sum(lengths) <= each:
        return [0]
    # Groups start where the length changes: a later start would not make a group narrower.
    starts = [0, *(at for at in range(1, count) if lengths[at] < lengths[at - 1])]
    least, then = {count: 0}, dict[int, int]()
    for i in reversed(range(len(starts))):
        start = starts[i]
        costs = {end: (end - start) * lengths[start] + each + least[end] for end in (*starts[i + 1 :], count)}
        then[start] = min(costs, key=costs.__getitem__)
        least[start] = costs[then[start]]
    cuts, start = [], 0
    while start < count:
        cuts.append(start)
        start = then[start]
    return cuts
