"""Whether a server's log-probs follow a change of the weights that is smaller than its precision."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch
from test_new_weights import PROMPTS, SAMPLING, SEEDS, make_policy, sampler_of
from vllm_stand_in import StandIn

from rlcore_engines.vllm.connection import StaleWeights
from rlcore_engines.vllm.weight_check import Tokens, follows

BEFORE = [-1.0, -2.0, -3.0, -0.5]


def shifted(values: list[float], by: list[float]) -> list[float]:
    return [value + each for value, each in zip(values, by, strict=True)]


def test_the_nearer_of_old_and_new_log_probs_decides_if_it_is_clear() -> None:
    """By hand: an engine that is off by .1 everywhere; the policy's log-probs have changed by .2, -.3, .1, .4.

    Of a server that has changed by c times that, the squares differ by (1 - c)^2 * .3 - c^2 * .3 = (1 - 2 c) * .3.
    """
    change = [0.2, -0.3, 0.1, 0.4]
    served, own = shifted(BEFORE, [0.1] * 4), shifted(BEFORE, change)
    for part, usual, expected in [
        (1.0, 1e-4, True), (0.6, 1e-4, True), (0.4, 1e-4, False), (0.0, 1e-4, False),
        (0.4, 0.06 / 100 * 1.1, True), (0.4, 0.06 / 100 * 0.9, False),
    ]:  # fmt: skip
        now = shifted(served, [part * each for each in change])
        assert follows(Tokens(served, now, BEFORE, own), usual) is expected, (part, usual)


def test_a_server_with_the_same_bits_as_before_has_not_followed() -> None:
    own = shifted(BEFORE, [0.0, 0.0, 0.002, 0.0])  # too little to be clear otherwise
    assert not follows(Tokens(BEFORE, BEFORE, BEFORE, own), 0.01)
    assert follows(Tokens(BEFORE, BEFORE, BEFORE, BEFORE), 0.01)  # weights with a new name, and the same
    assert follows(Tokens([], [], [], []), 0.0)


def test_a_noisy_server_that_has_followed_is_never_accused() -> None:
    random = Random(3)

    def noisy(values: list[float]) -> list[float]:
        return [value + random.gauss(0.0, 0.03) for value in values]

    for scale in (0.0, 0.003, 0.03, 0.3):
        for _ in range(2000):
            own_before = [random.uniform(-4.0, 0.0) for _ in range(32)]
            own = [value + random.gauss(0.0, scale) for value in own_before]
            assert follows(Tokens(noisy(own_before), noisy(own), own_before, own), 0.03**2)


def change_little(policy: object, seed: int) -> None:
    """Change weights so that no log-prob changes by half a nat."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in policy.module.parameters():  # type: ignore[attr-defined]
            weight.add_(torch.randn(weight.shape, generator=generator), alpha=2e-3)
    policy.version += 1  # type: ignore[attr-defined]


@pytest.mark.slow
def test_an_update_smaller_than_the_tolerance_that_does_not_arrive_stops_the_run(
    stand_in: StandIn, tmp_path: Path
) -> None:
    stand_in.info["dtype"] = "torch.bfloat16"  # so that log-probs may differ by half a nat
    policy, sampler = make_policy(), sampler_of(stand_in, tmp_path)
    for seed in range(3):
        batch = sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
        change_little(policy, seed)
    stand_in.keeps_weights = True
    with torch.no_grad():
        gaps = (policy.score(batch).logprobs - batch["logprobs"])[batch.action_mask].abs()
    assert 1e-3 < float(gaps.max()) < 0.5
    for _ in range(2):  # a second attempt does not pass either
        with pytest.raises(StaleWeights, match="they are nearer to those of the weights before"):
            sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    stand_in.keeps_weights = False
    change_little(policy, 3)
    sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
