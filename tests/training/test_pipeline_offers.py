"""Tests of what pipelines offer beside tokenising, whatever package they come from: previews, streams and rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import rlcore
from rlcore.errors import DataError, RewardError
from rlcore.types import Prompt, SampleReward
from rlcore_testing.small import make_gpt2, make_tokenizer
from rlcore_transformers.data import pipelines
from rlcore_transformers.data.pipelines import build_sample_rewards
from rlcore_transformers.data.prompts import build_prompts
from rlcore_transformers.data.samples import build_samples


class Previewed:
    """A pipeline of prompts with a column that only its preview shows."""

    def __call__(self, source: Any, tokenizer: Any, data: Any, *, max_length: int, what: str = "prompts") -> Any:
        return build_prompts(source, tokenizer, data, max_length=max_length, what=what)

    def preview(self, source: Any, data: Any, *, what: str) -> tuple[list[Prompt], bool]:
        del data, what
        return [Prompt(str(row), (0,), {"shown": 1}) for row in source[:2]], True


class Repeated:
    """A stream of its pipeline's first row, again and again."""

    epoch = 0.0

    def __init__(self, row: Any, read: Any) -> None:
        self.row, self.read, self.num_taken = row, read, 0
        self.is_usable = bool

    def num_batches(self, size: int) -> None:
        del size

    def take_within_pass(self, num: int) -> list[int]:
        self.num_taken += num
        return [0] * num

    def __getitem__(self, index: int) -> Any:
        return self.read([self.row], f"samples[{index}]")[0]

    def head(self) -> Sequence[Any]:
        return [self[0]]

    def state_dict(self) -> dict[str, Any]:
        return {"num_taken": self.num_taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_taken = state["num_taken"]


class Streaming:
    """A pipeline of samples that streams every source, and reads rewards in thousandths."""

    def __init__(self) -> None:
        self.opened: list[Repeated] = []

    def __call__(self, source: Any, tokenizer: Any, data: Any, *, max_length: int, what: str = "samples") -> Any:
        return build_samples(source, tokenizer, data, max_length=max_length, what=what)

    def open_stream(self, source: Any, data: Any, *, seed: int, read: Any, what: str = "samples") -> Repeated | None:
        del seed, what
        if not data.streaming:
            return None
        self.opened.append(Repeated(source[0], read))
        return self.opened[-1]

    def read_rewards(self, source: Any, samples: Any, columns: Any, *, what: str) -> list[SampleReward]:
        del columns
        return build_sample_rewards([number / 1000 for number in source], samples, what)

    def read_logit_mask(self, source: Any, what: str = "logit_mask") -> Any:
        raise NotImplementedError  # these tests set no logit mask


def ppo(folder: Any, reward_fn: Any) -> rlcore.Result:
    return rlcore.train(
        make_gpt2(), tokenizer=make_tokenizer(), reward_fn=reward_fn, prompts=["ab", "cd"], loggers=[],
        trainer={"name": "ppo", "rollouts": 2, "batch_size": 2, "epochs": 1}, gen={"max_new_tokens": 2},
        eval={"at_end": False}, run={"root": str(folder), "steps": 1},
    )  # fmt: skip


def supervised(folder: Any, name: str = "sft", **given: Any) -> rlcore.Result:
    return rlcore.train(
        make_gpt2(), tokenizer=make_tokenizer(), samples=[["ab", "cd"], ["e", "f"]], loggers=[],
        trainer={"name": name, "batch_size": 2}, run={"root": str(folder), "steps": 2}, **given,
    )  # fmt: skip


def test_functions_are_checked_with_the_preview_of_any_pipeline(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "PROMPTS", Previewed())
    with pytest.raises(RewardError, match=r"before the run, with prompts.* known parameters: .*shown"):
        ppo(tmp_path, lambda outputs, absent: [0.0] * len(outputs))


def test_functions_are_checked_in_the_first_step_if_a_pipeline_has_no_preview(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelines, "PROMPTS", build_prompts)
    with pytest.raises(RewardError, match=r"step 1, batch of 2.* has an unknown parameter 'absent'"):
        ppo(tmp_path, lambda outputs, absent: [0.0] * len(outputs))


def test_a_trainer_learns_from_the_stream_that_a_pipeline_opens(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Streaming()
    monkeypatch.setattr(pipelines, "SAMPLES", ours)
    result = supervised(tmp_path, data={"streaming": True})
    assert [stream.num_taken for stream in ours.opened] == [4]
    assert result.metrics["data/tokens"] == 2 * len("cd") + 2  # the first row twice, each with its EOS


def test_a_pipeline_reads_the_rewards_of_samples(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "SAMPLES", Streaming())
    result = supervised(tmp_path, "ilql", rewards=[500, 250])
    assert [each.total for each in result.run.data.sample_rewards] == [0.5, 0.25]


@pytest.mark.parametrize("given", [{"data": {"streaming": True}}, {"trainer": "ilql", "rewards": [1, 2]}])
def test_a_pipeline_that_only_tokenises_neither_streams_nor_reads_rewards(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    monkeypatch.setattr(pipelines, "SAMPLES", build_samples)  # also the one that stands in for others
    with pytest.raises(DataError, match=r"the pipeline of samples (opens no streams|reads no rewards)"):
        supervised(tmp_path, given.pop("trainer", "sft"), **given)
