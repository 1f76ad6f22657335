"""Runs that sample later rounds while they learn: from which weights, in which order, and what they repeat."""

from __future__ import annotations

import copy
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from asynchronous_runs import TRAINERS, metrics, rollouts, train, weights
from depths import by_day

from rlcore.checkpoints.state import load_state
from rlcore.errors import ConfigError, RewardError
from rlcore_engines.asynchronous.sampler import AheadSampler
from rlcore_testing.rig.isolate import call_in_new_process, call_on_two_ranks
from rlcore_testing.small import toy_reward
from rlcore_transformers.sampling.sampler import DefaultSampler


class Recorder:
    """Copies of the policy after each step."""

    def __init__(self) -> None:
        self.policies: list[Any] = []

    def on_run_start(self, run: Any) -> None:
        self.policies.append(copy.deepcopy(run.learner))
        self.policies[-1].use_forward(self.policies[-1].module, autocast=nullcontext)

    def on_step(self, run: Any, metrics: Any) -> None:
        self.on_run_start(run)


@pytest.mark.parametrize("ahead", [1, 2])
@pytest.mark.parametrize("trainer", ["ppo", "grpo"])
def test_the_round_of_a_step_is_a_sample_of_the_weights_so_many_steps_before(
    trainer: str, ahead: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round is sampled again from a copy of the weights of that step, with the seeds that the run drew."""
    recorder, asked = Recorder(), list[tuple[Any, ...]]()
    call = AheadSampler.__call__

    def recorded(self: Any, policy: Any, prompts: Any, sampling: Any, **options: Any) -> Any:
        rows = call(self, policy, prompts, sampling, **options)
        asked.append((list(prompts), sampling, list(options["row_seeds"]), rows))
        return rows

    monkeypatch.setattr(AheadSampler, "__call__", recorded)
    train(tmp_path, trainer, ahead, observers=[recorder], eval={"at_end": False})
    assert len(asked) == 4
    for step, (prompts, sampling, seeds, rows) in enumerate(asked):
        version = max(0, step - ahead)
        assert rows["versions"].tolist() == [version] * 8
        again = DefaultSampler()(recorder.policies[version], prompts, sampling, row_seeds=seeds)
        assert again.action_tokens == rows.action_tokens
        assert torch.equal(again["logprobs"], rows["logprobs"])
    fresh = DefaultSampler()(recorder.policies[3], *asked[3][:2], row_seeds=asked[3][2])
    assert not torch.equal(fresh["logprobs"], asked[3][3]["logprobs"])  # those of the present weights are others


def test_a_round_that_is_due_later_is_sampled_at_most_so_many_steps_before(tmp_path: Path) -> None:
    """RFT samples in every third step, here 1, 4 and 7, so that its rounds are of steps 0, 2 and 5."""
    result = train(tmp_path, "rft", 1, change={"improve_steps": 3}, run={"steps": 7})
    rows = {(row["step"], row["version"]) for row in rollouts(tmp_path)}
    assert rows == {(1, 0), (4, 2), (7, 5)}
    lines = {line["step"]: line for line in metrics(tmp_path) if "rft/round" in line}
    assert [lines[step].get("age/max") for step in range(1, 8)] == [0.0, None, None, 1.0, None, None, 1.0]
    assert result.metrics["time/idle_s"] >= 0


@pytest.mark.parametrize("trainer", list(TRAINERS))
def test_age_and_version_of_samples_are_recorded(trainer: str, tmp_path: Path) -> None:
    train(tmp_path, trainer, 2, run={"steps": 5}, change={"improve_steps": 1} if trainer == "rft" else {})
    lines = [line for line in metrics(tmp_path) if "reward/mean" in line]
    assert [(line["age/mean"], line["age/max"]) for line in lines] == [(a, a) for a in (0.0, 1.0, 2.0, 2.0, 2.0)]
    assert all(row["version"] == max(0, row["step"] - 3) for row in rollouts(tmp_path))


@pytest.mark.parametrize("trainer", ["ppo", "grpo"])
def test_older_samples_are_weighed_by_the_policy_over_the_sampler(trainer: str, tmp_path: Path) -> None:
    train(tmp_path, trainer, 1)
    means = [line["is/weight_mean"] for line in metrics(tmp_path) if "is/weight_mean" in line]
    assert means[0] == pytest.approx(1.0, abs=1e-5)
    assert all(abs(mean - 1) > 1e-3 for mean in means[1:])


@pytest.mark.parametrize("trainer", list(TRAINERS))
def test_without_the_option_nothing_is_wrapped_and_no_column_is_added(trainer: str, tmp_path: Path) -> None:
    result = train(tmp_path, trainer, 0, run={"steps": 2})
    assert type(result.run.sampling.sampler) is DefaultSampler
    assert not any("version" in row for row in rollouts(tmp_path))
    assert not any(name.startswith(("age/", "time/idle")) for name in result.metrics)


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [1, 2])
@pytest.mark.parametrize("trainer", list(TRAINERS))
def test_resuming_equals_not_having_stopped(trainer: str, ahead: int, tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", trainer, ahead, run={"steps": 5})
    train(tmp_path / "parts", trainer, ahead, run={"steps": 2})
    parts = train(tmp_path / "parts", trainer, ahead, run={"steps": 5, "resume": "auto"})
    assert rollouts(tmp_path / "parts") == rollouts(tmp_path / "whole")
    assert all(map(torch.equal, weights(parts), weights(whole)))
    ends = [[line for line in metrics(tmp_path / each) if line["step"] > 2] for each in ("parts", "whole")]
    assert ends[0] == ends[1]


@pytest.mark.slow
def test_a_run_that_fails_between_checkpoints_repeats_its_rounds(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", "ppo", 2, run={"steps": 6})
    calls = list[int]()

    def reward(outputs: list[str]) -> list[float]:
        calls.append(1)
        if len(calls) == 5:
            raise ValueError("out of order")
        return toy_reward(outputs)

    check = {"check_functions": False}
    with pytest.raises(RewardError):
        train(
            tmp_path / "parts", "ppo", 2, run={"steps": 6, **check}, reward_fn={"toy_reward": reward},
            checkpoint={"every": 3},
        )  # fmt: skip
    accepted = {"accept_changes": ["data.reward_fn"], "resume": "auto"}
    parts = train(tmp_path / "parts", "ppo", 2, run={"steps": 6, **accepted})
    assert rollouts(tmp_path / "parts") == rollouts(tmp_path / "whole")
    assert all(map(torch.equal, weights(parts), weights(whole)))


def test_a_checkpoint_contains_the_rows_that_have_not_been_learned_from(tmp_path: Path) -> None:
    train(tmp_path, "ppo", 2, run={"steps": 3})
    state = load_state(next((tmp_path / "run/checkpoints").glob("*3")) / "trainer.safetensors")
    rounds = state["trainer"]["asynchronous"]["rounds"]
    assert [each["version"] for each in rounds] == [1, 2]
    assert all(len(each["seeds"]) == len(each["rows"]["tokens"]) == 8 for each in rounds)


def test_rounds_after_the_last_step_are_left_out_if_nothing_can_go_on_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = dict[bool, int]()
    for at_end in (True, False):
        submitted, submit = list[int](), AheadSampler._submit

        def counted(self: Any, *given: Any, submit: Any = submit, submitted: list[int] = submitted) -> Any:
            submitted.append(1)
            return submit(self, *given)

        with monkeypatch.context() as patch:
            patch.setattr(AheadSampler, "_submit", counted)
            train(tmp_path / str(at_end), "ppo", 2, run={"steps": 3}, checkpoint={"at_end": at_end})
        counts[at_end] = len(submitted)
    assert counts == {True: 5, False: 3}


@pytest.mark.slow
def test_a_run_can_become_synchronous_and_asynchronous_where_it_is_resumed(tmp_path: Path) -> None:
    train(tmp_path, "grpo", 1, run={"steps": 2})
    with pytest.raises(ConfigError, match=r"run\.asynchronous was 1"):
        train(tmp_path, "grpo", 0, run={"steps": 3, "resume": "auto"})
    accepted = {"resume": "auto", "accept_changes": ["run.asynchronous"]}
    train(tmp_path, "grpo", 0, run={"steps": 3, **accepted})
    train(tmp_path, "grpo", 1, run={"steps": 5, **accepted})
    versions = {row["step"]: row.get("version") for row in rollouts(tmp_path)}
    assert versions == {1: 0, 2: 0, 3: None, 4: 3, 5: 3}


def test_evaluations_sample_the_present_weights(tmp_path: Path) -> None:
    """Greedy outputs after the last step are those of the trained policy, and its samples of before are others."""
    greedy = {"every": 1, "gen": {"temperature": 0.0}, "num_prompts": 8}
    result = train(tmp_path, "grpo", 1, eval=greedy)
    lines = [json.loads(line) for line in (tmp_path / "run/completions.jsonl").read_text().splitlines()]
    last = [line["output"] for line in lines if line["step"] == 4]
    assert last == result.generate([line["prompt"] for line in lines if line["step"] == 4], temperature=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("trainer", by_day(["ppo", "grpo", "rft"], ["grpo"]))
def test_two_processes_learn_as_one_and_go_on_as_one(trainer: str, tmp_path: Path) -> None:
    """The run on two processes stops after two steps, and continues; that on one does not stop."""
    arguments = {"trainer": trainer, "folder": str(tmp_path / "one"), "steps": [4]}
    one = call_in_new_process("asynchronous_runs:trained", arguments, what="one")
    arguments |= {"folder": str(tmp_path / "two"), "steps": [2, 4]}
    two = call_on_two_ranks("asynchronous_runs:trained", arguments, what="two")
    assert [row["version"] for row in two["rows"]] == [row["version"] for row in one["rows"]]
    assert [(row["prompt"], row["output"]) for row in two["rows"]] == [
        (row["prompt"], row["output"]) for row in one["rows"]
    ]
    for mine, other in zip(one["weights"], two["weights"], strict=True):
        assert other == pytest.approx(mine, abs=1e-5)


@pytest.mark.slow
def test_a_run_of_two_processes_goes_on_in_one_with_the_rows_that_it_had(tmp_path: Path) -> None:
    whole = train(tmp_path / "one", "ppo", 1)
    arguments = {"trainer": "ppo", "folder": str(tmp_path / "two"), "steps": [2]}
    call_on_two_ranks("asynchronous_runs:trained", arguments, what="two")
    parts = train(tmp_path / "two", "ppo", 1, run={"resume": "auto"})
    found = [[(row["step"], row["output"], row["version"]) for row in rollouts(tmp_path / n)] for n in ("one", "two")]
    assert found[0] == found[1]
    for mine, other in zip(weights(whole), weights(parts), strict=True):
        assert torch.allclose(mine, other, atol=1e-5)
