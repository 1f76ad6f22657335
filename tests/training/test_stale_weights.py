"""Tests of the signs that a round was sampled from another policy, on batches with hand-made numbers."""

from __future__ import annotations

import functools
import types
from typing import Any

import pytest
import torch

from rlcore.protocols import SamplerTraits
from rlcore.ranks import Ranks
from rlcore.training import Round, Run, rollout_health
from rlcore.types import Trajectories


def make_run(*, is_full_precision: bool = True, lags: bool = False) -> Any:
    run = types.SimpleNamespace(
        step=4, _warned=set(), models=types.SimpleNamespace(is_full_precision=is_full_precision),
        sampling=types.SimpleNamespace(traits=SamplerTraits(types.SimpleNamespace(lags=lags))),
    )  # fmt: skip
    run.warn_once = functools.partial(Run.warn_once, run)
    return run


def make_batch(*, gap: float = 0.0, kl: float = 0.0, rows: int = 10) -> Round:
    """Return rows of 2 chosen tokens; `gap` is the sampler's distance at each, `kl` the log-ratio of each row."""
    batch = Trajectories.stack([[1, 2, 3]] * rows, [[False, True, True]] * rows)
    logprobs = torch.full((rows, 3), -1.0)
    logprobs[:, 0] = 999.0  # no chosen token
    batch = batch.with_columns(
        logprobs=logprobs,
        sampler_logprobs=torch.full((rows, 3), -1.0 - gap),
        ref_logprobs=-1.0 - kl / 2 * torch.ones(rows, 3),
    )
    return Round.of(Ranks(None), batch)


@pytest.mark.parametrize(
    ("gap", "kl", "full", "found"),
    [
        (5e-4, 0.0, True, []),
        (2e-3, 0.0, True, ["log-probs are not those"]),
        (2e-3, 0.0, False, []),
        (0.1, 0.0, False, ["log-probs are not those"]),
        (float("nan"), 0.0, True, ["log-probs are not those"]),
        (0.0, -1.9, True, []),  # -19 in all: rare, but possible
        (0.0, -2.1, True, ["far below 0"]),
        (0.0, 2.1, True, []),
        (0.1, -2.1, True, ["log-probs are not those", "far below 0"]),
    ],
)
def test_log_probs_that_cannot_come_from_the_policy_are_reported(
    gap: float, kl: float, full: bool, found: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(is_full_precision=full)
    metrics = rollout_health(run, make_batch(gap=gap, kl=kl))
    assert metrics["is/logprob_gap"] == pytest.approx(gap, nan_ok=True, abs=1e-6)
    seen = capsys.readouterr().err
    assert [sign for sign in ("log-probs are not those", "far below 0") if sign in seen] == found
    rollout_health(run, make_batch(gap=gap, kl=kl))
    assert not capsys.readouterr().err  # once in a run


def test_rounding_over_many_samples_is_not_reported(capsys: pytest.CaptureFixture[str]) -> None:
    rollout_health(make_run(), make_batch(kl=-0.05, rows=1000))  # -50 in all
    assert "far below" not in capsys.readouterr().err


def test_a_sampler_whose_weights_are_older_on_purpose_is_not_reported(capsys: pytest.CaptureFixture[str]) -> None:
    for lags in (True, False):
        rollout_health(make_run(lags=lags), make_batch(gap=0.1, kl=-2.1))
        assert ("log-probs are not those" in capsys.readouterr().err) is not lags


def test_a_round_without_other_log_probs_has_nothing_to_compare() -> None:
    assert rollout_health(make_run(), make_batch().with_only("logprobs")) == {}
