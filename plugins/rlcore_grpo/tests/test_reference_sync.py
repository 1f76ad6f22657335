"""The reference that follows the policy."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from grpo_making import make

import rlcore
from rlcore.errors import ConfigError
from rlcore_testing.small import PROMPTS, make_gpt2, make_tokenizer, toy_reward


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def test_the_reference_moves_after_so_many_optimizer_steps(tmp_path: Path) -> None:
    trainer = make(tmp_path, kl_coef=0.1, minibatches=3, sync_ref_every=2, sync_ref_alpha=0.25)
    policy, seen = trainer.policy(), list[dict[str, torch.Tensor]]()
    first, after = weights(policy.reference), trainer.reference_sync.after

    def watched(num_updates: int, *, before: int) -> None:
        seen.append(weights(policy.model))
        after(num_updates, before=before)
        assert (num_updates, before) == (len(seen), len(seen) - 1)

    trainer.reference_sync.after = watched
    next(trainer.steps())  # three optimizer steps, so one move
    for name, weight in policy.reference.named_parameters():
        assert torch.allclose(weight, 0.25 * seen[1][name] + 0.75 * first[name], atol=1e-7), name
    assert any(not torch.equal(weight, first[name]) for name, weight in policy.reference.named_parameters())
    assert not any(weight.requires_grad for weight in policy.reference.parameters())


@pytest.mark.slow
def test_a_moving_reference_resumes_exactly(tmp_path: Path) -> None:
    def train(name: str, steps: int, resume: str = "never") -> Any:
        run = {"root": str(tmp_path), "name": name, "steps": steps, "resume": resume}
        trainer = {
            "name": "grpo", "rollouts": 8, "num_generations": 4, "kl_coef": 0.5, "sync_ref_every": 1,
            "optimizer": {"lr": 1e-2},
        }  # fmt: skip
        return rlcore.train(
            make_gpt2(), tokenizer=make_tokenizer(), trainer=trainer, prompts=list(PROMPTS), reward_fn=toy_reward,
            gen={"max_new_tokens": 6}, eval={"at_end": False}, loggers=[], run=run,
        ).policy  # fmt: skip

    whole = train("whole", 4)
    train("parts", 2)
    parts = train("parts", 4, "auto")
    for one, other in ((whole.model, parts.model), (whole.reference, parts.reference)):
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.slow
def test_a_reference_begins_or_ceases_to_move_where_it_is_when_a_run_is_resumed(tmp_path: Path) -> None:
    def train(name: str, steps: int, every: int) -> Any:
        trainer = {
            "name": "grpo", "rollouts": 8, "num_generations": 4, "kl_coef": 0.5, "sync_ref_every": every,
            "optimizer": {"lr": 1e-2},
        }  # fmt: skip
        run = {
            "root": str(tmp_path), "name": name, "steps": steps, "resume": "auto",
            "accept_changes": ["trainer.sync_ref_every"],
        }  # fmt: skip
        return rlcore.train(
            make_gpt2(), tokenizer=make_tokenizer(), trainer=trainer, prompts=list(PROMPTS), reward_fn=toy_reward,
            gen={"max_new_tokens": 6}, eval={"at_end": False}, loggers=[], run=run,
        ).policy  # fmt: skip

    first = weights(make_gpt2())
    moved = weights(train("ceases", 2, 1).reference)
    assert any(not torch.equal(weight, first[name]) for name, weight in moved.items())
    for steps in (3, 4):  # the checkpoint of the third step has the moved reference too
        kept = weights(train("ceases", steps, 0).reference)
        assert all(torch.equal(weight, moved[name]) for name, weight in kept.items())
    assert all(torch.equal(weight, first[name]) for name, weight in weights(train("begins", 2, 0).reference).items())
    begun = weights(train("begins", 3, 1).reference)
    assert any(not torch.equal(weight, first[name]) for name, weight in begun.items())


def test_a_reference_that_cannot_move_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sync_ref_every = 4: without trainer.kl_coef there is no reference"):
        make(tmp_path, sync_ref_every=4)
    trainer = make(tmp_path, kl_coef=0.1)
    policy = copy.copy(trainer.policy())
    policy.reference = object()
    with pytest.raises(ConfigError, match=r"the model without its adapter as reference, which cannot follow it"):
        type(trainer.reference_sync)(make(tmp_path, kl_coef=0.1, sync_ref_every=4).config, policy)


def test_rollouts_show_groups_with_their_rewards_and_advantages(tmp_path: Path) -> None:
    def useless_at_first(outputs: list[str]) -> list[float]:
        calls.append(len(outputs))
        return [0.5 if len(calls) == 1 and i < 4 else float(i) for i in range(len(outputs))]

    calls: list[int] = []
    trainer = {"name": "grpo", "rollouts": 8, "num_generations": 4, "zero_spread": "refill", "scale": "none"}
    result = rlcore.train(
        make_gpt2(), tokenizer=make_tokenizer(), trainer=trainer, prompts=list(PROMPTS), reward_fn=useless_at_first,
        gen={"max_new_tokens": 6}, eval={"at_end": False}, loggers=[],
        run={"root": str(tmp_path), "steps": 1, "rollouts": "all"},
    )  # fmt: skip
    rows = [json.loads(line) for line in (result.run_dir / "rollouts.jsonl").read_text().splitlines()]
    assert [row["group"] for row in rows] == [0] * 4 + [1] * 4 + [2] * 4  # the third was sampled in place of the first
    assert [row["reward"] for row in rows] == [0.5] * 4 + [4, 5, 6, 7] + [0, 1, 2, 3]
    assert [row["advantage"] for row in rows] == [0] * 4 + [-1.5, -0.5, 0.5, 1.5] * 2
    assert len({row["prompt"] for row in rows[8:]}) == 1
