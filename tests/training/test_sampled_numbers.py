"""Tests that nothing is learned from tokens that were sampled from numbers that are not finite."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import rlcore
from rlcore.errors import Diverged
from rlcore.types import Trajectories
from rlcore_testing.small import PROMPTS, make_llama, make_tokenizer, toy_reward

TRAINERS: dict[str, dict[str, Any]] = {
    "ppo": {"rollouts": 8, "batch_size": 4}, "grpo": {"rollouts": 8, "num_generations": 2},
    "reinforce": {"rollouts": 8}, "rft": {"generations": 2, "batch_size": 4},
}  # fmt: skip


def train(root: Path, model: Any, name: str = "grpo", **options: Any) -> Any:
    return rlcore.train(
        model, trainer={"name": name, **TRAINERS[name]}, tokenizer=make_tokenizer(), prompts=list(PROMPTS),
        reward_fn=toy_reward, eval={"at_end": False}, run={"root": str(root), "steps": 2, "report": False}, loggers=[],
        **{"gen": {"max_new_tokens": 4}, **options},
    )  # fmt: skip


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    ("name", "gen"),
    [*((name, {}) for name in TRAINERS), ("reinforce", {"top_k": 3}), ("reinforce", {"temperature": 0.0})],
    ids=str,
)
def test_logits_that_are_not_finite_while_sampling_end_the_run(
    tmp_path: Path, name: str, bad: float, gen: dict[str, Any]
) -> None:
    model, first = make_llama(), torch.tensor([0])

    def spoil(_module: Any, _inputs: Any, outputs: Tensor) -> Tensor:
        return outputs if torch.is_grad_enabled() else outputs + torch.zeros_like(outputs).index_fill(0, first, bad)

    model.lm_head.register_forward_hook(spoil)
    with pytest.raises(Diverged, match=r"step 1: a sampled token has (sampling_)?logprobs = (nan|-?inf): the model's"):
        train(tmp_path, model, name, gen={"max_new_tokens": 4, **gen})


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("trainer", [{}, {"is_correction": "sequence_truncate"}, {"off_policy_mask": 0.5}], ids=str)
def test_log_probs_of_a_sampler_that_are_not_finite_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: float, trainer: dict[str, Any]
) -> None:
    from rlcore.training.run_sampling import Sampling

    plain = Sampling.sample

    def sampler(self: Sampling, *arguments: Any, **options: Any) -> Trajectories:
        inner = self.sampler

        def spoiled(*given: Any, **further: Any) -> Trajectories:
            batch = inner(*given, **further)
            return batch.with_columns(logprobs=batch["logprobs"].masked_fill(batch.action_mask, bad))

        self.sampler = spoiled
        try:
            return plain(self, *arguments, **options)
        finally:
            self.sampler = inner

    monkeypatch.setattr(Sampling, "sample", sampler)
    monkeypatch.setitem(TRAINERS, "grpo", {**TRAINERS["grpo"], **trainer})
    with pytest.raises(Diverged, match=r"step 1: a sampled token has logprobs = (nan|-?inf)"):
        train(tmp_path, make_llama())
