"""Trainers learn from episodes as from single turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from env_games import Echo
from episode_runs import TRAINERS, Fails, at, constant, lines, run

from rlcore.cli import main
from rlcore.errors import ConfigError, InputsError, RLCoreError, UnknownEnvironment
from rlcore.loggers import display_row


@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainer_learns_from_episodes_without_a_reward_function(name: str, tmp_path: Path) -> None:
    result = run(tmp_path, trainer={"name": name, **TRAINERS[name]})
    assert result.metrics["episode/turns"] == 3.0
    assert result.metrics["episode/done"] + result.metrics["episode/truncated"] == 1.0  # by the end of the last turn
    assert result.metrics["episode/success"] == 1.0
    assert result.metrics["eval/episode/turns"] == 3.0
    (first, *_) = lines(result, "rollouts.jsonl")
    said = [(each["role"], each["content"]) for each in first["transcript"]]
    assert [role for role, _ in said] == ["assistant", "user"] * 3
    total = sum(each.get("reward", 0.0) for each in first["transcript"])
    assert first["reward"] == total == sum(text.count("a") for role, text in said if role == "assistant")


def test_an_environment_and_a_reward_function_both_count_by_weight(tmp_path: Path) -> None:
    def turns_left(
        turns: Any, messages: Any, transcript: Any, info: Any, outputs: Any, samples: Any, level: Any
    ) -> list[float]:
        for row in zip(turns, messages, transcript, info, outputs, samples, level, strict=True):
            said, whole, record, about, output, sample, number = row
            assert [m["content"] for m in whole if m["role"] == "assistant"] == said
            assert [m["role"] for m in whole[:2]] == ["user", "user"]  # the row's prompt and the environment's opening
            assert [m["content"] for m in record] == [m["content"] for m in whole[2:]]
            assert about["end"] == ("truncated" if record[-2].get("truncated") else "done")
            assert number == 7
            assert sample.endswith(output)
        return [10.0 + len(each) for each in turns]

    result = run(
        tmp_path, trainer={"name": "grpo", **TRAINERS["grpo"]}, prompts=[{"prompt": "ab", "level": 7}] * 2,
        reward_fn=[(turns_left, 0.5), {"fn": "environment", "weight": 3.0}],
    )  # fmt: skip
    for row in lines(result, "rollouts.jsonl"):
        assert row["reward/turns_left"] == 13.0
        assert row["reward"] == 0.5 * 13.0 + 3.0 * row["reward/environment"]


@pytest.mark.parametrize("name", TRAINERS)
def test_failed_episodes_have_no_score_and_nothing_is_learned_from_them(name: str, tmp_path: Path) -> None:
    rows = [{"prompt": "ab", "seed": seed} for seed in (1, 2, 4, 6)]
    result = run(
        tmp_path, trainer={"name": name, **TRAINERS[name]}, environment=Fails, prompts=rows, reward_fn=constant,
        eval={"at_end": False},
    )  # fmt: skip
    found = lines(result, "rollouts.jsonl")
    failed = [row for row in found if row["transcript"][-1]["role"] == "failure"]
    assert failed
    assert all(row["reward"] is None and row["reward/constant"] is None for row in failed)
    assert all(row["reward"] is not None for row in found if row not in failed)
    first = lines(result, "metrics.jsonl")[0]
    assert first["reward/unscored"] == len([row for row in failed if row["step"] == 1])


def test_tools_are_called_and_their_results_are_read(tmp_path: Path) -> None:
    trainer = {"name": "reinforce", "rollouts": 4}
    result = run(tmp_path, environment=None, tools=[double], trainer=trainer, reward_fn=constant)
    assert result.metrics["episode/turns"] == 1.0  # random letters call no tool
    assert "double" in (result.run_dir / "config.yaml").read_text()


def double(number: int) -> int:
    """Double a number.

    Args:
        number: The number.
    """
    return 2 * number


@pytest.mark.slow
def test_a_run_goes_on_exactly_where_it_was_stopped(tmp_path: Path) -> None:
    trainer = {"name": "ppo", **TRAINERS["ppo"]}
    whole = run(tmp_path / "whole", trainer=trainer, run=at(tmp_path / "whole", steps=4))
    run(tmp_path / "parts", trainer=trainer, run=at(tmp_path / "parts", steps=2))
    parts = run(tmp_path / "parts", trainer=trainer, run=at(tmp_path / "parts", steps=4, resume="auto"))
    for name in ("rollouts.jsonl",):
        assert lines(whole, name) == lines(parts, name)
    mine, other = (dict(each.policy.module.named_parameters()) for each in (whole, parts))
    assert all(torch.equal(mine[name], other[name]) for name in mine)


def test_an_environment_is_named_in_a_file_as_a_module_and_its_attribute(tmp_path: Path) -> None:
    result = run(tmp_path, environment="env_games:Echo", trainer={"name": "reinforce", "rollouts": 4})
    assert "environment: env_games:Echo" in (result.run_dir / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"environment": "wordel"}, UnknownEnvironment, "no environment is called 'wordel'"),
        ({"environment": Echo, "tools": [double]}, InputsError, "environment and tools: pass one of them"),
        ({"environment": None, "tools": [3]}, ConfigError, r"tools: 3: is not callable; give functions, or \{'mcp'"),
        ({"environment": None, "tools": []}, ConfigError, r"tools .* = \[\]: give a list with at least one function"),
        ({"environment": None, "tools": 3}, ConfigError, r"tools .* = 3: give a list with at least one function"),
        ({"prompts": None}, InputsError, "the environment has no rows of its own, so give prompts"),
        ({"data": {"episodes": {"max_turn": 3}}}, ConfigError, "data.episodes.max_turn.*max_turns"),
    ],
)
def test_what_cannot_be_used_is_refused(given: Any, error: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        run(tmp_path, trainer={"name": "reinforce", "rollouts": 4}, **given)


def test_a_trainer_of_samples_needs_only_rows_to_evaluate_on(tmp_path: Path) -> None:
    rows, sft = [{"prompt": "ab"}], {"name": "sft", "batch_size": 2}
    result = run(tmp_path, trainer=sft, prompts=None, samples=["ab", "ba"], eval_prompts=rows, eval={"at_end": True})
    assert "eval/reward/mean" in result.metrics
    with pytest.raises(InputsError, match="prompts"):
        run(tmp_path / "other", trainer={"name": "reinforce", "rollouts": 4}, prompts=None, eval_prompts=rows)


def test_the_core_names_the_package_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLCORE_DISABLE_PLUGINS", "rlcore-environments")
    with pytest.raises(
        ConfigError, match=r"data\.environment = .*comes with rlcore-environments, which is installed, but disabled"
    ):
        run(tmp_path, trainer={"name": "reinforce", "rollouts": 4})


def test_a_run_with_another_environment_does_not_go_on_by_itself(tmp_path: Path) -> None:
    trainer = {"name": "reinforce", "rollouts": 4}
    run(tmp_path, trainer=trainer, run=at(tmp_path, steps=1))
    with pytest.raises(RLCoreError, match=r"data\.environment"):
        run(tmp_path, trainer=trainer, environment=Fails, run=at(tmp_path, steps=2, resume="auto"))
    with pytest.raises(RLCoreError, match=r"data\.episodes\.max_turns"):
        run(tmp_path, trainer=trainer, data={"episodes": {"max_turns": 2}}, run=at(tmp_path, steps=2, resume="auto"))


def test_turns_are_shown_with_their_speakers_and_rewards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(tmp_path, trainer={"name": "reinforce", "rollouts": 4}, run=at(tmp_path, steps=1, report=True))
    first = lines(result, "rollouts.jsonl")[0]
    shown = display_row(first)["output"].splitlines()
    said = [f"{each['role']} ({each['reward']:+g}): {each['content']}" for each in first["transcript"][::2]]
    assert shown[::2] == said
    assert all(line.startswith("user: ") for line in shown[1::2])
    capsys.readouterr()
    assert main(["rollouts", str(result.run_dir), "--step", "1"]) == 0
    assert "assistant (" in capsys.readouterr().out
    assert "assistant (" in (result.run_dir / "report.html").read_text()
