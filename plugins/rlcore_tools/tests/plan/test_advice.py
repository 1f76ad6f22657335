"""Tests of the changes that `rlcore plan` suggests: each saves the stated memory and changes only the named options."""

from __future__ import annotations

from pathlib import Path

import pytest
from planning_making import folders, imitation, ppo

from rlcore.config import merge, parse_overrides
from rlcore_tools.plan.advice import FREE, SLOWER, advise
from rlcore_tools.plan.estimate import estimate

__all__ = ["folders"]  # a fixture


@pytest.mark.nightly
def test_each_suggested_change_saves_the_stated_memory(
    folders: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    values = merge(ppo(folders["llama"], kl_coef=0.1), {"model": {"unfrozen_layers": 1, "sampling_dtype": "bfloat16"}})
    values = merge(values, {"gen": {"max_new_tokens": 12}})
    found = estimate(values, "test")
    capfd.readouterr()
    advice = advise(values, "test", found, 0)
    assert capfd.readouterr() == ("", "")  # the warnings of a suggested change are not warnings of the run
    assert {each.change for each in advice} >= TRIED
    for each in (each for each in advice if each.change in AGAIN):
        changed = merge(values, parse_overrides(each.change.split()))
        less = estimate(changed, "test").measured.worst.peak  # each change estimated alone
        assert each.saving == found.measured.worst.peak - less > 0
        assert each.peak == found.peak - each.saving


TRIED = {
    "trainer.micro_batch_size=4", "trainer.micro_batch_size=1", "model.trunk_cache_gb=0", "model.sampling_dtype=null",
    "trainer.kl_coef=0", "model.dtype=bfloat16",
}  # fmt: skip
AGAIN = {"trainer.micro_batch_size=1", "model.trunk_cache_gb=0", "model.sampling_dtype=null"}
"""Changes whose estimates reuse the policy, the sampling memory, and nothing, respectively."""


@pytest.mark.nightly
def test_changes_that_alter_training_are_suggested_only_if_no_other_is_enough(folders: dict[str, Path]) -> None:
    values = imitation(folders["gpt"], "sft")
    found = estimate(values, "test")
    milder, harder, *_ = slightly = advise(values, "test", found, found.peak - 1)
    assert {each.price for each in slightly} <= {FREE, SLOWER}
    assert [milder.change, harder.change] == ["trainer.micro_batch_size=4", "trainer.micro_batch_size=1"]
    assert milder.saving < harder.saving
    first, *others = advise(values, "test", found, 0)
    assert first.change == "trainer.micro_batch_size=1"
    less = estimate(merge(values, {"trainer": {"micro_batch_size": 1}}), "test").measured.worst.peak
    assert first.saving == found.measured.worst.peak - less > 0
    assert first.peak == less + found.baseline
    assert any("model.peft" in each.change for each in others)


@pytest.mark.slow
def test_a_smaller_evaluation_batch_is_suggested_if_evaluation_takes_most_memory(folders: dict[str, Path]) -> None:
    sampled = {"eval": {"batch_size": 2048, "samples": 512}, "data": {"eval_prompts": ["ab", "cd", "ef", "gh"]}}
    values = merge(imitation(folders["gpt"], "sft", micro_batch_size=1), {**sampled, "gen": {"max_new_tokens": 32}})
    found = estimate(values, "test")
    assert found.measured.worst.name == "evaluation"
    assert advise(values, "test", found, found.peak - 1)[0].change == "eval.batch_size=512"
