"""Tests of the updater: an update equals a plain training loop, and resumes exactly from a saved state."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from updater_cases import (
    MATRIX,
    OPTIMIZERS,
    SCHEDULES,
    TOTAL,
    VECTOR,
    Loop,
    Policy,
    Weights,
    loss_of,
    update,
    updater_of,
)

from rlcore.checkpoints.state import load_state, save_state
from rlcore.errors import ConfigError, RanksError
from rlcore.optim.updater import Updater
from rlcore.ranks import Ranks
from rlcore.settings import OptimizerConfig


def named(pair: tuple[OptimizerConfig, Any]) -> str:
    return "-".join([pair[0].name, *pair[0].options])


@pytest.mark.parametrize("pair", OPTIMIZERS, ids=named)
def test_updates_equal_a_plain_loop_without_weight_decay_on_vectors(pair: tuple[OptimizerConfig, Loop]) -> None:
    config, build = pair
    ours, plain = Weights(), Weights()
    update(updater_of(ours, config), ours, 0, TOTAL)
    optimizer = build([{"params": [plain.matrix]}, {"params": [plain.vector], "weight_decay": 0.0}])
    for step in range(TOTAL):
        optimizer.zero_grad()
        loss_of(plain, step).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()
    torch.testing.assert_close(ours.matrix, plain.matrix, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.vector, plain.vector, rtol=1e-5, atol=1e-6)
    assert (ours.matrix - MATRIX).abs().max().item() > 0.01


RESUMED = [
    *(config for config, _ in OPTIMIZERS),
    *(
        OptimizerConfig(
            name="sgd", lr=0.1, options={"momentum": 0.9}, scheduler=name, scheduler_options=options, warmup_steps=warm
        )
        for name, options, warm, _ in SCHEDULES
    ),
    OptimizerConfig(name="adafactor", lr=0.1, options={"beta1": 0.9}, scheduler="cosine", warmup_steps=4),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("config", RESUMED, ids=lambda config: f"{config.name}-{config.scheduler}")
def test_a_restored_optimizer_continues_exactly(config: OptimizerConfig, dtype: torch.dtype, tmp_path: Path) -> None:
    whole = Weights(dtype=dtype)
    updater = updater_of(whole, config)
    update(updater, whole, 0, 5)
    save_state(tmp_path / "state", updater.state_dict())
    parted = Weights(whole.matrix.detach(), whole.vector.detach(), dtype)
    rates = update(updater, whole, 5, TOTAL)
    again = updater_of(parted, config)
    again.load_state_dict(load_state(tmp_path / "state"))
    assert update(again, parted, 5, TOTAL) == rates
    assert torch.equal(parted.matrix, whole.matrix)
    assert torch.equal(parted.vector, whole.vector)
    assert (again.num_updates, again.num_skipped) == (TOTAL, 0)


def test_every_update_raises_the_version_of_the_policy() -> None:
    policy: Any = Policy(Weights())
    updater = Updater(policy, OptimizerConfig(lr=0.1), Ranks("no"), total_updates=TOTAL)
    for step in range(2):
        updater.backward(loss_of(policy.module, step))
        updater.step()
    updater.skip()
    assert policy.version == 2


def test_a_gradient_is_scaled_to_the_bound() -> None:
    weights = Weights()
    updater = updater_of(weights, OptimizerConfig(name="sgd", lr=1.0, max_grad_norm=0.5))
    updater.backward(loss_of(weights, 0))
    gradients = torch.cat([weights.matrix.grad.flatten(), weights.vector.grad])  # type: ignore[union-attr]
    norm = float(gradients.norm())
    assert float(updater.step()) == pytest.approx(norm)  # type: ignore[arg-type]
    moved = torch.cat([(weights.matrix - MATRIX).flatten(), weights.vector - VECTOR])
    torch.testing.assert_close(moved.detach(), -gradients * 0.5 / norm)


def test_the_8_bit_optimizer_needs_bitsandbytes(monkeypatch: pytest.MonkeyPatch) -> None:
    missing: ModuleType | None = None
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", missing)
    with pytest.raises(ConfigError, match=r"'adamw_8bit' .* needs bitsandbytes, which is not installed: pip install"):
        updater_of(Weights(), OptimizerConfig(name="adamw_8bit"))


@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
def test_the_8_bit_optimizer_is_close_to_adamw() -> None:
    large = torch.linspace(-1, 1, 80 * 64).view(80, 64)
    ours, plain = Weights(large, torch.ones(64)), Weights(large, torch.ones(64))
    updater = updater_of(ours, OptimizerConfig(name="adamw_8bit", lr=0.01))
    update(updater, ours, 0, 6)
    update(updater_of(plain, OptimizerConfig(lr=0.01)), plain, 0, 6)
    assert updater.optimizer.state[ours.matrix]["state1"].dtype == torch.uint8
    assert float((ours.matrix - plain.matrix).abs().mean()) < 0.1 * float((plain.matrix - large).abs().mean())


def test_a_parameter_that_ranks_cannot_exchange_is_an_error_with_the_reason(
    make_trainer: Callable[..., Any], tiny_gpt2: nn.Module
) -> None:
    updater = make_trainer("sft", tiny_gpt2, inputs={"samples": ["ab"]}).updater
    with pytest.raises(RanksError, match="such as an expert to which no token was routed"), updater.exchanging(True):
        raise RuntimeError("Expected to have finished reduction in the prior iteration before starting a new one.")
    with pytest.raises(RuntimeError, match="other"), updater.exchanging(True):
        raise RuntimeError("other")
