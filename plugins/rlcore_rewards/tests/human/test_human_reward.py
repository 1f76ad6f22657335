"""Tests of runs that wait for people."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from people import Person, follow_link, in_thread

import rlcore
from rlcore.cli import main
from rlcore.errors import ConfigError, RanksError, RewardError
from rlcore_rewards.human import human_reward
from rlcore_rewards.human.config import HumanConfig
from rlcore_rewards.human.human_reward import HumanReward
from rlcore_rewards.human.judgement import read_judgements
from rlcore_testing.small import make_gpt2, make_tokenizer

HANG_S = 300.0
"""How long a test that hangs waits."""
PROMPTS = ["ab", "cd", "ef", "gh"]


class Crowd:
    """People who open the link of a run and answer until the run ends, or until they have made `most` judgements."""

    def __init__(
        self,
        lines: list[str],
        *,
        most: int = 1000,
        then: Callable[[], None] = lambda: None,
        judged: threading.Event | None = None,
    ) -> None:
        self.asked: list[str] = []
        self.judged = judged or threading.Event()
        self.met = threading.Barrier(2)
        self.over, self._lock, self._left, self._then = threading.Event(), threading.Lock(), most, then
        self._mine = threading.local()
        self.threads = [in_thread(lambda who=who: self._work(who, lines))[0] for who in ("ann", "bob")]

    def _work(self, who: str, lines: list[str]) -> None:
        Person(follow_link(lambda: "\n".join(lines)), who).judge_until(self.over.is_set, self._value, self.judged)

    def _value(self, item: dict[str, Any]) -> Any:
        if self._left > 2 and not self.over.is_set() and not hasattr(self._mine, "has_begun"):
            self.met.wait(HANG_S)  # both have a question before one of them answers
            self._mine.has_begun = True
        with self._lock:
            if not self._left:
                self._then()
                self.over.wait()
            self._left -= 1
            self.asked.append(item["key"])
        lengths = [len(output["text"]) for output in item["outputs"]]
        return 1 + lengths[0] % 5 if item["mode"] == "score" else list(range(1, len(lengths) + 1))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join(HANG_S)


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return what the reward prints."""
    printed: list[str] = []
    monkeypatch.setattr(human_reward, "write", lambda text, stream: printed.append(f"{text}\n"))
    return printed


def train(
    root: Path,
    model: Any = None,
    *,
    steps: int = 2,
    trainer: Any = None,
    human: Any = None,
    at_end: bool = False,
    **run: Any,
) -> Any:
    return rlcore.train(
        model or make_gpt2(), tokenizer=make_tokenizer(), trainer=trainer or {"name": "reinforce", "rollouts": 8},
        prompts=PROMPTS, reward_fn={"fn": "human", **(human or {})}, gen={"max_new_tokens": 4, "batch_size": 4},
        run={"root": str(root), "name": "run", "steps": steps, "rollouts": "all", "overlap_rewards": True, **run},
        checkpoint={"every": 1}, eval={"at_end": at_end}, loggers=[],
    )  # fmt: skip


def test_a_run_learns_from_the_scores_of_two_people_and_asks_each_question_once(
    tmp_path: Path, lines: list[str]
) -> None:
    with Crowd(lines) as crowd:
        result = train(tmp_path)
    judgements = read_judgements(result.run_dir)
    assert len(lines) == 1  # the link is printed once
    assert {each.who for each in judgements} == {"ann", "bob"}
    assert max(Counter(crowd.asked).values()) == 1
    rollouts = [json.loads(line) for line in (result.run_dir / "rollouts.jsonl").read_text().splitlines()]
    assert [row["reward"] for row in rollouts] == [1 + len(row["output"]) % 5 for row in rollouts]
    assert len(rollouts) == 16
    assert {(row["prompt"], row["output"]) for row in rollouts} == {
        (j.item.prompt, j.item.outputs[0]) for j in judgements
    }
    assert {each.item.step for each in judgements} == {1, 2}


def test_people_judge_while_sampling_goes_on(tmp_path: Path, lines: list[str]) -> None:
    model, judged, widths, waits = make_gpt2(), threading.Event(), [0], []

    def wait(_module: Any, arguments: Any) -> None:
        """Decode no token of the second batch before a completion of the first one is judged."""
        widths.append(arguments[0].shape[1])
        if widths[-1] == 1 < widths[-2]:  # the first token after the prompts of a batch
            waits.append(judged.wait(HANG_S) if waits else judged.is_set())

    model.transformer.wte.register_forward_pre_hook(wait)
    with Crowd(lines, judged=judged):
        train(tmp_path, model, steps=1)
    assert waits == [False, True]


def test_a_ranking_scores_the_completions_of_a_prompt_between_0_and_1(tmp_path: Path, lines: list[str]) -> None:
    trainer = {"name": "grpo", "rollouts": 8, "num_generations": 4}
    with Crowd(lines):
        result = train(tmp_path, steps=1, trainer=trainer, human={"mode": "rank"})
    judgements = read_judgements(result.run_dir)
    assert {each.item.mode for each in judgements} == {"rank"}
    scores = {
        (j.item.prompt, text): score for j in judgements for text, score in zip(j.item.outputs, j.scores, strict=True)
    }
    for row in map(json.loads, (result.run_dir / "rollouts.jsonl").read_text().splitlines()):
        assert row["reward"] == pytest.approx(scores[row["prompt"], row["output"]])


def test_a_run_that_is_ended_while_it_waits_asks_only_the_rest_when_it_goes_on(
    tmp_path: Path, lines: list[str]
) -> None:
    def stop_at_once() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with Crowd(lines, most=1, then=stop_at_once), pytest.raises(KeyboardInterrupt):
        train(tmp_path, steps=1)
    (kept,) = read_judgements(tmp_path / "run")  # also in the first step
    lines.clear()
    with Crowd(lines) as crowd:
        train(tmp_path, steps=1, resume="auto")
    found = read_judgements(tmp_path / "run")
    assert found[0] == kept
    assert sorted(crowd.asked) == sorted(judgement.item.key for judgement in found[1:])


def test_the_first_signal_ends_a_waiting_run_with_a_checkpoint_of_what_is_judged(
    tmp_path: Path, lines: list[str]
) -> None:
    with Crowd(lines, most=5, then=lambda: os.kill(os.getpid(), signal.SIGINT)):
        result = train(tmp_path)
    assert result.run.progress.was_interrupted
    assert result.run.step == 1
    assert result.metrics["reward/unscored"] >= 1
    assert (result.run_dir / "checkpoints" / "00000001").is_dir()


def test_a_signal_during_the_last_evaluation_loses_no_step(tmp_path: Path, lines: list[str]) -> None:
    with Crowd(lines, most=8, then=lambda: os.kill(os.getpid(), signal.SIGINT)):
        result = train(tmp_path, steps=1, at_end=True)
    assert len(read_judgements(result.run_dir)) == 8
    assert (result.run_dir / "checkpoints" / "00000001").is_dir()


def test_a_run_that_waits_prints_its_link_again(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(step=20)  # seconds: each reading is that much later
    monkeypatch.setattr(human_reward, "time", types.SimpleNamespace(monotonic=lambda: float(next(clock))))
    with pytest.raises(RewardError):
        train(tmp_path, human={"timeout_s": 1000})
    first, *reminders = lines
    link = first.removeprefix("people judge completions at ").strip()
    assert 3 <= len(reminders) <= 1100 / 60
    assert set(reminders) == {f"4 questions wait for people at {link}\n"}


def test_too_long_a_wait_is_an_error_that_names_the_option(tmp_path: Path, lines: list[str]) -> None:
    with pytest.raises(RewardError, match=r"were not answered by people within human\.timeout_s = 0\.3 seconds"):
        train(tmp_path, human={"timeout_s": 0.3})
    assert not (tmp_path / "run").exists()  # nothing was judged


def test_judging_by_people_in_several_processes_is_refused() -> None:
    run: Any = types.SimpleNamespace(ranks=types.SimpleNamespace(world=2))
    with pytest.raises(RanksError, match="works in runs of one process, and this one has 2"):
        HumanReward(HumanConfig()).open(run)


def test_an_empty_range_of_scores_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"human\.low = 3: must be below human\.high = 3"):
        HumanReward(HumanConfig(low=3, high=3))


@pytest.mark.slow
def test_planning_a_run_asks_no_person(tmp_path: Path, capsys: Any) -> None:
    make_gpt2().save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    config = {
        "model": {"path": str(tmp_path / "model")}, "trainer": {"name": "reinforce", "rollouts": 4},
        "data": {"prompts": PROMPTS, "reward_fn": "human"}, "gen": {"max_new_tokens": 4}, "run": {"steps": 1},
    }  # fmt: skip
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(config))
    assert main(["plan", str(path)]) == 0
    assert "people judge" not in "".join(capsys.readouterr())
