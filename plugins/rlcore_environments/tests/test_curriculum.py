"""Environments that are reset late, and values of rows that move over a run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog.testing
import torch
from env_games import TEMPLATE, Echo, Scripted, make_player, make_policy, read_prompts

import rlcore
from rlcore.errors import ConfigError
from rlcore.protocols import Step, Turn
from rlcore.settings import SamplingConfig
from rlcore_environments.openings import Curriculum
from rlcore_testing.small import make_gpt2, make_tokenizer

GEN = SamplingConfig(max_new_tokens=8)


class Levels:
    """It notes what it receives, and says its level; an episode succeeds with half of the letters."""

    received: list[dict[str, Any]] = []  # noqa: RUF012

    def reset(self, row: Any, *, seed: int) -> str:
        self.received.append(dict(row))
        return "go " + "x" * int(row.get("level", 0))

    def step(self, turn: Turn) -> Step:
        is_early = turn.text[:1] < "n"
        return Step(reward=float(is_early), done=True, info={"success": is_early})


def levels() -> Any:
    return type("Levels", (Levels,), {"received": []})


def moved(given: Any, step: int, **metrics: float) -> float:
    curriculum = Curriculum({"level": given})
    named = {name.replace("_", "/", 1): value for name, value in metrics.items()}
    curriculum.run = SimpleNamespace(step=step, metrics=named)  # type: ignore[assignment]
    return curriculum.values("train")["level"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"from": 1, "to": 5, "over": 8}, {0: 1, 1: 1, 2: 2, 7: 4, 8: 5, 100: 5}),
        ({"from": 5, "to": 1, "over": 4}, {0: 5, 1: 4, 3: 2, 4: 1}),
        ({"from": 0.0, "to": 1, "over": 4}, {0: 0.0, 1: 0.25, 4: 1}),
    ],
)
def test_a_value_moves_over_so_many_steps(given: Any, expected: dict[int, float]) -> None:
    assert {step: moved(given, step) for step in expected} == expected
    assert all(isinstance(moved(given, step), type(value)) for step, value in expected.items())


def test_a_value_moves_after_rounds_of_enough_success() -> None:
    given = {"from": 1, "to": 5, "success": 0.75, "by": 3}
    assert moved(given, 9) == 1  # nothing is known yet
    for before, success, after in [(1, 0.7, 1), (1, 0.75, 4), (4, 0.8, 5), (5, 0.0, 5), (5, 1.0, 5)]:
        assert moved(given, 9, curriculum_level=before, episode_success=success) == after
    down = {"from": 1.0, "to": 0.0, "success": 0.5, "by": 0.1}
    assert moved(down, 9, curriculum_level=0.7000000000000001, episode_success=0.6) == pytest.approx(0.6, abs=1e-12)


def test_rows_to_evaluate_on_have_the_last_values() -> None:
    assert Curriculum({"level": {"from": 1, "to": 5, "over": 9}}).values("eval") == {"level": 5}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, r"data\.episodes\.curriculum = 3: give a mapping from names of columns to \{from: 1"),
        ({"level": 3}, r"data\.episodes\.curriculum\.level = 3: give \{from: 1, to: 5, over: 100\}"),
        ({"level": {"form": 1}}, r"curriculum\.level\.form: no such key; did you mean 'from'\?"),
        ({"level": {"from": 1, "over": 2}}, r"curriculum\.level: has no `to`"),
        ({"level": {"from": "1", "to": 2, "over": 2}}, r"curriculum\.level\.from = '1': must be a number"),
        ({"level": {"from": 1, "to": float("inf"), "over": 2}}, r"curriculum\.level\.to = inf: must be a number"),
        ({"level": {"from": 1, "to": 2}}, "give one of `over`, a number of steps, and `success`"),
        ({"level": {"from": 1, "to": 2, "over": 2, "success": 0.5}}, "give one of `over`"),
        ({"level": {"from": 1, "to": 2, "over": 0}}, r"level\.over = 0: must be a whole number of steps, at least 1"),
        ({"level": {"from": 1, "to": 2, "over": 2, "by": 1}}, r"level\.by: has no effect with `over`"),
        ({"level": {"from": 1, "to": 2, "success": 1.5}}, r"level\.success = 1\.5: must be a share above 0, at most 1"),
        ({"level": {"from": 1, "to": 2, "success": 0.5, "by": 0.5}}, r"level\.by = 0\.5: must be a whole number above"),
        ({"level": {"from": 0.1, "to": 2, "success": 0.5}}, "level: has no `by`, by which the value moves"),
    ],
)
def test_a_curriculum_of_another_form_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_player(Echo, data={"episodes": {"curriculum": given}})


def test_a_curriculum_that_reaches_no_row_is_refused() -> None:
    player = make_player(levels(), data={"episodes": {"curriculum": {"level": {"from": 1, "to": 2, "over": 2}}}})
    assert len(read_prompts(player, make_policy(), [{"level": 3}, {"wall": "north"}])) == 2
    with pytest.raises(ConfigError, match=r"curriculum\.level: has no effect, since every row to train on has"):
        read_prompts(player, make_policy(), [{"level": 3}, {"level": 0}])


def test_a_curriculum_by_success_stays_at_its_first_value_until_an_episode_states_its_success(tmp_path: Path) -> None:
    """The third round is the first one whose episodes state it, as if only wins did."""

    class Wins(Levels):
        received: list[dict[str, Any]] = []  # noqa: RUF012

        def step(self, turn: Turn) -> Step:
            return Step(reward=1.0, done=True, info={"success": True} if len(self.received) > 16 else {})

    with structlog.testing.capture_logs() as logs:
        result = train(tmp_path, Wins, {"from": 1, "to": 4, "success": 0.6}, steps=5, rollouts="none")
    structlog.reset_defaults()  # captured values count as configured from then on
    steps = [row["curriculum/level"] for row in lines(result, "metrics.jsonl") if "curriculum/level" in row]
    assert steps == [1.0, 1.0, 1.0, 2.0, 3.0]
    warned = [each for each in logs if "until an episode succeeds" in each["event"]]
    assert [(each["option"], each["value"]) for each in warned] == [("data.episodes.curriculum.level", 1)]


def test_a_curriculum_whose_episodes_all_failed_stays_where_it_is_without_a_warning() -> None:
    curriculum = Curriculum({"level": {"from": 1, "to": 5, "success": 0.5}})
    curriculum.run = SimpleNamespace(step=1, metrics={"curriculum/level": 1.0, "episode/failed": 1.0})  # type: ignore[assignment]
    with structlog.testing.capture_logs() as logs:
        assert curriculum.values("train") == {"level": 1}
    structlog.reset_defaults()
    assert not logs


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("row", [{"prompt": "a"}, {"level": 3}])
def test_an_environment_that_is_reset_late_has_the_same_episodes(chat: bool, row: Any) -> None:
    """Without a reset when the prompts are read, the tokens and the conversation are the same."""
    found, policy = [], make_policy(chat=chat)
    for lazy in (False, True):
        made = levels()
        player = make_player(made, data={"episodes": {"lazy": lazy}})
        prompts = read_prompts(player, policy, [row])
        assert len(made.received) == (0 if lazy else 1)
        batch: Any = player.sampler(Scripted(["x"]))(policy, prompts, GEN, row_seeds=[0])  # type: ignore[arg-type]
        assert len(made.received) == (1 if lazy else 2)
        assert batch.failures == [""]
        whole = batch.arguments["messages"][0]
        if not chat:  # the prompt is one text, with or without the first messages
            whole = "".join(each["content"] for each in whole)
        found.append((batch.tokens.tolist(), batch.action_mask.tolist(), whole))
    assert found[0] == found[1]
    assert batch.arguments["transcript"][0][0] == {"role": "user", "content": "go " + "x" * row.get("level", 0)}
    assert batch.outputs[0].strip().startswith("[user] go" if chat else "go")


def test_a_late_reset_that_says_nothing_fails_its_episode() -> None:
    class Silent(Echo):
        def reset(self, row: Any, *, seed: int) -> str:
            return ""

    policy, player = make_policy(chat=True), make_player(Silent, data={"episodes": {"lazy": True, "max_failed": 1.0}})
    prompts = read_prompts(player, policy, [{"level": 1}])
    batch: Any = player.sampler(Scripted(["x"]))(policy, prompts, GEN, row_seeds=[0])  # type: ignore[arg-type]
    assert batch.failures[0] == (
        "episode 0, turn 0: prompts[0]: environment 'Silent': reset returned no messages, and the row has no 'prompt', "
        "so the policy has nothing to answer"
    )


def train(folder: Path, environment: Any, curriculum: Any, *, steps: int, **run: Any) -> Any:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return rlcore.train(
        make_gpt2(), trainer={"name": "grpo", "rollouts": 8, "num_generations": 4, "optimizer": {"lr": 1e-2}},
        environment=environment, prompts=[{"prompt": letter} for letter in "abcd"],
        eval_prompts=[{"prompt": "e"}, {"prompt": "f", "level": 2}], gen={"max_new_tokens": 2}, loggers=[],
        run={"root": str(folder), "name": "run", "steps": steps, "report": False, "rollouts": "all", **run},
        data={"episodes": {"curriculum": {"level": curriculum}}}, tokenizer=tokenizer,
    )  # fmt: skip


def lines(result: Any, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (result.run_dir / name).read_text().splitlines()]


def test_a_run_shows_its_level_and_its_environment_receives_it(tmp_path: Path) -> None:
    made = levels()
    result = train(tmp_path, made, {"from": 1, "to": 4, "over": 3}, steps=4)
    steps = [row for row in lines(result, "metrics.jsonl") if "curriculum/level" in row]
    assert [row["curriculum/level"] for row in steps] == [1.0, 2.0, 3.0, 4.0]
    assert result.metrics["eval/curriculum/level"] == 4.0  # of the row that has no level of its own
    received = [row["level"] for row in made.received]
    assert received[:-2] == [1] * 8 + [2] * 8 + [3] * 8 + [4] * 8
    assert sorted(received[-2:]) == [2, 4]  # threads reset both episodes of the evaluation, in any order
    assert all(f"go {'x' * row['step']}" in row["output"] for row in lines(result, "rollouts.jsonl"))


@pytest.mark.parametrize("curriculum", [{"from": 1, "to": 9, "over": 4}, {"from": 1, "to": 9, "success": 0.6}])
def test_a_run_with_a_curriculum_goes_on_exactly_where_it_was_stopped(curriculum: Any, tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", Levels, curriculum, steps=4)
    train(tmp_path / "parts", Levels, curriculum, steps=2)
    parts = train(tmp_path / "parts", Levels, curriculum, steps=4, resume="auto")
    assert lines(whole, "rollouts.jsonl") == lines(parts, "rollouts.jsonl")
    seen = [[row.get("curriculum/level") for row in lines(each, "metrics.jsonl")] for each in (whole, parts)]
    assert seen[0][:4] == [row for row in seen[1] if row is not None][:4]
    assert len(set(seen[0][:4])) > 1
    mine, other = (dict(each.policy.module.named_parameters()) for each in (whole, parts))
    assert all(torch.equal(mine[name], other[name]) for name in mine)


def test_a_run_with_another_curriculum_does_not_go_on_by_itself(tmp_path: Path) -> None:
    train(tmp_path, Levels, {"from": 1, "to": 4, "over": 3}, steps=1)
    with pytest.raises(rlcore.errors.RLCoreError, match=r"data\.episodes\.curriculum\.level\.to was 4, is 5"):
        train(tmp_path, Levels, {"from": 1, "to": 5, "over": 3}, steps=2, resume="auto")
