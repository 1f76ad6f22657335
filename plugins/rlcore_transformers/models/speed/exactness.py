"""The probe that decides whether a technique may be used with a model: a small batch must come out the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlcore.dropout import eval_mode
from rlcore.errors import ModelError
from rlcore_transformers.models.freezing import vocabulary_size
from rlcore_transformers.models.hub import first_line
from rlcore_transformers.models.speed import TechniqueRefused

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
