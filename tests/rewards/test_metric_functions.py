"""Tests of metric functions: called like reward functions, with the same errors."""

from __future__ import annotations

import math

import pytest
import torch
from reward_asking import OUTPUTS, PROMPTS

from rlcore.errors import DataError, RewardError
from rlcore.rewards.values import call_metric


def test_metrics_are_read_like_rewards():
    def metric_fn(outputs, label):
        return {"length": torch.tensor([len(o) for o in outputs]), "label": label}

    expected = {"length": [1, 2, 0], "label": [1, 2, None]}
    assert call_metric(metric_fn, PROMPTS, OUTPUTS, tokenizer=None) == expected


def test_metrics_may_come_from_a_coroutine_or_a_reference(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_metrics.py").write_text("async def count(outputs):\n    return {'n': [len(o) for o in outputs]}\n")
    assert call_metric("my_metrics:count", PROMPTS, OUTPUTS, None) == {"n": [1, 2, 0]}


@pytest.mark.parametrize(
    ("metric_fn", "message"),
    [
        (
            lambda samples: [1, 2, 3],
            r"metric function 'metric' \(step 2, batch of 3\) returned \[1, 2, 3\]; return a dict",
        ),
        (lambda samples: {"a": [1, 2]}, r"metric function 'metric', metric 'a' .* returned 2 values for 3 samples"),
        (lambda samples: {"a": [1, math.nan, 2]}, r"metric 'a' .* returned nan for sample 1"),
        (lambda samples: {3: [1, 2, 3]}, r"named a metric 3 \(int\)"),
        (lambda samples: 1 / 0, r"raised ZeroDivisionError: division by zero"),
    ],
)
def test_unusable_metrics_are_an_error_that_names_the_function(metric_fn, message):
    with pytest.raises(RewardError, match=message):
        call_metric(metric_fn, PROMPTS, OUTPUTS, None, where="step 2")


def test_a_metric_name_without_a_module_is_refused():
    with pytest.raises(DataError, match=r"metric_fn = 'accuracy': is not of the form 'module:function'"):
        call_metric("accuracy", PROMPTS, OUTPUTS, None)
