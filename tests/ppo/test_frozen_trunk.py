"""Tests of PPO with a frozen trunk: results are equal whether it runs once per round or in every pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from ppo_making import ENDS, PROMPTS, lengths
from torch import Tensor, nn

import rlcore
from rlcore.models.freezing import decoder_blocks
from rlcore.testing.small import make_llama, make_tokenizer


def train(root: Path, room: float, **changes: Any) -> tuple[dict[str, Tensor], list[dict[str, float]], list[int]]:
    """Train for three rounds; return weights, metrics, and how often each block ran on more than one token."""
    model, counts = make_llama(layers=4), [0] * 4

    def count(i: int) -> Any:
        def note(_: nn.Module, __: object, out: Tensor) -> None:
            counts[i] += torch.is_grad_enabled() or out.shape[0] == 1  # the sampler runs several rows without gradients

        return note

    for i, block in enumerate(decoder_blocks(model)):
        block.mlp.down_proj.register_forward_hook(count(i))

    def reward_fn(samples: list[str], outputs: list[str]) -> list[float]:
        counts[:] = counts if calls else [0] * 4  # without the runs while the policy is built
        calls.append(len(samples))
        return lengths(samples, outputs)

    calls: list[int] = []
    trainer = {
        "name": "ppo", "rollouts": 23, "batch_size": 8, "micro_batch_size": 5, "epochs": 4, "kl_coef": 0.3,
        "optimizer": {"lr": 0.01}, **changes,
    }  # fmt: skip
    result = rlcore.train(
        {"path": model, "unfrozen_layers": 2, "trunk_cache_gb": room}, tokenizer=make_tokenizer(), trainer=trainer,
        prompts=PROMPTS, reward_fn=reward_fn, gen={"max_new_tokens": 6, "eos_token_ids": ENDS}, loggers=[],
        run={"steps": 3, "root": str(root), "name": str(room)}, eval={"at_end": False},
    )  # fmt: skip
    rows = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    kept = [{name: value for name, value in row.items() if not name.startswith(("time", "perf"))} for row in rows]
    return model.state_dict(), kept, counts


@pytest.mark.parametrize("changes", [{}, {"kl_coef": 0.0, "bootstrap_truncated": True}])
def test_a_training_is_the_same_with_and_without_the_memory(tmp_path: Path, changes: dict[str, Any]) -> None:
    weights, metrics, counts = train(tmp_path, 2.0, **changes)
    due, expected, plain = train(tmp_path, 0.0, **changes)
    for name, weight in due.items():
        torch.testing.assert_close(weights[name], weight, rtol=0, atol=1e-5)
    for row, other in zip(metrics, expected, strict=True):
        assert row == pytest.approx(other, rel=1e-4, abs=1e-5, nan_ok=True)
    assert counts[2:] == plain[2:] == [plain[0]] * 2
    assert counts[0] == counts[1] < 0.5 * plain[0]
