"""Groups that are sampled in place of others."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from grpo_making import SIZE, make

from rlcore.training import Order
from rlcore_testing.rig.isolate import call_on_two_ranks

LETTERS = ["a", "b", "c", "d", "e", "f"]


def refilled(folder: str) -> dict[str, Any]:
    """Sample a round whose second group is refilled, and return its prompts and the position in their order."""

    def rising(prompts: list[str]) -> list[float]:
        return [1.0 if prompt == order[1] else float(i % SIZE) for i, prompt in enumerate(prompts)]

    def alike(prompts: list[str]) -> list[float]:
        return [0.0] * len(prompts)

    # A process without rows receives the columns of the others in the order of their names, `alike` first.
    rewards = [(rising, 1.0), (alike, 0.0)]
    trainer = make(Path(folder), prompts=LETTERS, reward_fn=rewards, zero_spread="refill", scale="none")
    order = [LETTERS[i] for i in Order(len(LETTERS), trainer.run.config.run.seed).take(len(LETTERS))]
    metrics = trainer.rollout()
    batch = trainer.run.round(trainer.store.take())
    whole = batch.whole()
    starts = [
        trainer.run.learner.tokenizer.decode(row[real & ~chosen])
        for row, real, chosen in zip(whole.tokens, whole.mask, whole.action_mask, strict=True)
    ]
    return {
        "prompts": starts, "position": trainer.rounds.order.position, "order": order,
        "advantages": batch["advantages"].tolist(), "dropped": metrics["group/dropped"],
    }  # fmt: skip


def assert_one_group_is_refilled(seen: dict[str, Any]) -> None:
    first, _, third, fourth = seen["order"][:4]
    assert seen["prompts"] == [first] * SIZE + [third] * SIZE + [fourth] * SIZE
    assert (seen["position"], seen["dropped"]) == (4, 1)
    assert seen["advantages"] == [-1.5, -0.5, 0.5, 1.5] * 3


def test_a_refilled_round_has_the_next_prompts(tmp_path: Path) -> None:
    assert_one_group_is_refilled(refilled(str(tmp_path)))


@pytest.mark.slow
def test_two_ranks_refill_as_many_prompts_as_one(tmp_path: Path) -> None:
    """One prompt is missing, so that the second rank samples nothing."""
    assert_one_group_is_refilled(call_on_two_ranks("test_refill:refilled", {"folder": str(tmp_path)}, what="refilling"))


@pytest.mark.parametrize("combine", ["sum", "normalize_then_sum"])
def test_advantages_of_a_refilled_round_have_the_scale_of_the_whole_round(tmp_path: Path, combine: str) -> None:
    """The first group has scores of 0, 10, 20 and 30, those sampled later 0, 1, 2 and 3, and 4, 5, 6 and 7."""
    calls: list[int] = []

    def one_group_at_first(outputs: list[str]) -> list[float]:
        calls.append(len(outputs))
        if len(calls) > 1:
            return [float(i) for i in range(len(outputs))]
        return [10.0 * i if i < SIZE else 0.5 for i in range(len(outputs))]

    scale = {"scale": "batch"} if combine == "sum" else {"combine": combine}
    trainer = make(tmp_path, reward_fn=one_group_at_first, zero_spread="refill", **scale)
    trainer.rollout()
    seen = trainer.store.take()["advantages"]
    if combine == "sum":
        deviation = statistics.stdev([0, 10, 20, 30, *range(8)]) + 1e-4
        expected = [x / deviation for x in (-15, -5, 5, 15, *(-1.5, -0.5, 0.5, 1.5) * 2)]
    else:
        groups = [(-15, -5, 5, 15), (-1.5, -0.5, 0.5, 1.5), (-1.5, -0.5, 0.5, 1.5)]
        parts = [x / (statistics.stdev(group) + 1e-4) for group in groups for x in group]
        expected = [x / (statistics.stdev(parts) + 1e-4) for x in parts]
    assert calls == [12, 8]
    assert seen.tolist() == pytest.approx(expected, abs=1e-5)


def test_dropped_groups_take_no_part_in_the_scale_of_the_round(tmp_path: Path) -> None:
    def one_group(outputs: list[str]) -> list[float]:
        return [float(i) if i < SIZE else 100.0 for i in range(len(outputs))]

    trainer = make(tmp_path, reward_fn=one_group, zero_spread="drop", scale="batch")
    trainer.rollout()
    deviation = statistics.stdev(range(SIZE)) + 1e-4
    expected = torch.tensor([-1.5, -0.5, 0.5, 1.5]) / deviation
    assert torch.allclose(trainer.store.take()["advantages"], expected)
