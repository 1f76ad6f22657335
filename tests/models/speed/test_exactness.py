"""Tests of the probe's tolerance, and of the modes in which it runs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from rlcore_testing.small import make_gpt2
from rlcore_transformers.models.speed import TechniqueRefused
from rlcore_transformers.models.speed.activations import probing, require_same


@pytest.mark.parametrize(
    ("dtype", "error", "offset", "refused"),
    [
        (torch.float32, 1.9e-4, 0.0, False),  # a ten-thousandth of 2
        (torch.float32, 2.1e-4, 0.0, True),
        (torch.float32, 2.9e-4, 1.0, False),
        (torch.float32, 3.1e-4, 1.0, True),
        (torch.bfloat16, 0.09, 0.0, False),  # a twentieth of 2
        (torch.bfloat16, 0.11, 0.0, True),
        (torch.float32, math.nan, 0.0, True),
    ],
)
def test_a_result_may_differ_by_rounding_in_the_models_precision(
    dtype: torch.dtype, error: float, offset: float, refused: bool
) -> None:
    expected = torch.tensor([[0.5, -2.0], [1.0, 0.0]])
    seen, message = expected.clone(), ""
    seen[1, 1] -= error
    try:
        require_same(make_gpt2().to(dtype), "log-probs", seen, expected, offset=offset)
    except TechniqueRefused as refusal:
        message = str(refusal)
    assert message == (f"log-probs differ by {error:.2g} of 2" if refused else "")


def test_a_probe_runs_without_dropout_and_gradients_and_refuses_what_fails() -> None:
    model = make_gpt2().train()
    with probing(model):
        assert not torch.is_grad_enabled()
        assert not any(part.training for part in model.modules() if isinstance(part, nn.Dropout))
    assert model.training
    with pytest.raises(TechniqueRefused, match=r"^ValueError: no such mask$"), probing(model):
        raise ValueError("no such mask\nat all")
