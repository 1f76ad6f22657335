"""What a run with an environment records, evaluates and refuses."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from env_games import Scripted, make_player
from episode_runs import Fails, at, constant, lines, run

from rlcore.errors import ConfigError, RLCoreError
from rlcore.sampling import takes
from rlcore_environments.play import FILE, EpisodesFailed
from rlcore_transformers.sampling.sampler import sample

REINFORCE = {"name": "reinforce", "rollouts": 4}
GAME = """
class Game:
    def reset(self, row, *, seed):
        return "go"

    def step(self, turn):
        return {reward}

def tool(number: int) -> int:
    '''Count.

    Args:
        number: The number.
    '''
    return number + {reward}
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that writes the module `changing_game` anew, which rewards this much."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def written(reward: float) -> None:
        (tmp_path / "changing_game.py").write_text(GAME.replace("{reward}", str(reward)))
        sys.modules.pop("changing_game", None)
        importlib.invalidate_caches()
        sys.path_importer_cache.clear()
        import linecache

        linecache.clearcache()

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return written


@pytest.mark.parametrize(
    "environment", ["changing_game:Game", {"name": "tools", "functions": ["changing_game:tool"]}], ids=["class", "tool"]
)
def test_a_changed_source_behind_a_reference_does_not_go_on_by_itself(
    environment: Any, write: Any, tmp_path: Path
) -> None:
    given = {"environment": environment, "trainer": REINFORCE, "reward_fn": constant}
    write(1.0)
    run(tmp_path, **given, run=at(tmp_path, steps=1))
    run(tmp_path, **given, run=at(tmp_path, steps=2, resume="auto"))
    write(2.0)
    with pytest.raises(RLCoreError, match=r"data\.environment"):
        run(tmp_path, **given, run=at(tmp_path, steps=3, resume="auto"))


def test_a_run_goes_on_with_other_limits_of_time_and_failures(tmp_path: Path) -> None:
    run(tmp_path, trainer=REINFORCE, run=at(tmp_path, steps=1))
    episodes = {"timeout_s": 300.0, "concurrency": 2, "max_failed": 1.0, "retries": 1, "keep_states": False}
    run(tmp_path, trainer=REINFORCE, data={"episodes": episodes}, run=at(tmp_path, steps=2, resume="auto"))
    more = {"max_new_tokens": 6}
    with pytest.raises(RLCoreError, match=r"data\.episodes\.max_new_tokens"):
        run(tmp_path, trainer=REINFORCE, data={"episodes": more}, run=at(tmp_path, steps=3, resume="auto"))


def test_a_metric_function_receives_what_rewards_receive_of_episodes_that_did_not_fail(tmp_path: Path) -> None:
    seen = list[int]()

    def said(outputs: Any, turns: Any, info: Any, transcript: Any) -> dict[str, list[float]]:
        assert {about["end"] for about in info} <= {"done", "truncated"}
        assert all(row[-1]["role"] != "failure" for row in transcript)
        seen.append(len(outputs))
        return {"said": [float(len(each)) for each in turns]}

    rows = [{"prompt": "ab", "seed": seed} for seed in (1, 2, 4, 6)]
    result = run(
        tmp_path, trainer=REINFORCE, environment=Fails, prompts=rows, metric_fn=said, run=at(tmp_path, steps=1)
    )
    found = lines(result, "completions.jsonl")
    assert seen == [3] * (len(found) // 4)
    assert [row["said"] for row in found] == [None, 3.0, 3.0, 3.0] * (len(found) // 4)
    assert result.metrics["eval/said"] == 3.0


def test_a_sampler_of_episodes_takes_what_the_sampler_of_turns_takes() -> None:
    player: Any = make_player(Fails)
    assert takes(player.sampler(sample), "logit_mask")
    assert takes(player.sampler(sample), "row_seeds")
    assert not takes(player.sampler(Scripted()), "logit_mask")
    plain = player.sampler(lambda policy, prompts, sampling, *, generator=None: None)
    assert not takes(plain, "row_seeds")


@pytest.mark.parametrize(
    ("episodes", "longest"), [({}, 48), ({"max_turns": 4}, 12), ({"max_turns": 4, "max_new_tokens": 7}, 7)]
)
def test_the_longest_response_of_grpo_is_that_of_all_turns_together(
    episodes: dict[str, int], longest: int, tmp_path: Path
) -> None:
    """An overlong buffer may be as long as that, and no longer."""
    trainer: dict[str, Any] = {"name": "grpo", "rollouts": 4, "num_generations": 2, "overlong_buffer": float(longest)}
    given: dict[str, Any] = {"data": {"episodes": episodes}, "reward_fn": constant, "eval": {"at_end": False}}
    run(tmp_path, trainer=trainer, run=at(tmp_path, steps=1), **given)
    trainer["overlong_buffer"] = longest + 1.0
    with pytest.raises(ConfigError, match=f"is above the longest episode = {longest}"):
        run(tmp_path, trainer=trainer, run=at(tmp_path / "more", steps=1), **given)


def test_one_failure_in_the_last_batch_of_an_evaluation_does_not_end_the_run(tmp_path: Path) -> None:
    good, bad = ({"prompt": "ab", "seed": seed} for seed in (2, 1))
    given: dict[str, Any] = {"environment": Fails, "trainer": REINFORCE, "prompts": [good], "reward_fn": constant}
    options = {"batch_size": 2, "at_end": True}
    result = run(tmp_path, **given, eval=options, eval_prompts=[good, good, bad], run=at(tmp_path, steps=1))
    assert result.metrics["eval/episode/failed"] == pytest.approx(1 / 3)
    with pytest.raises(EpisodesFailed, match="2 of 3 episodes of 'Fails' failed"):
        run(tmp_path, **given, eval=options, eval_prompts=[good, bad, bad], run=at(tmp_path / "more", steps=1))
    with pytest.raises(EpisodesFailed, match="4 of 4 episodes of 'Fails' failed"):
        run(tmp_path, **{**given, "prompts": [bad]}, eval={"at_end": False}, run=at(tmp_path / "third", steps=1))


def test_episodes_that_end_a_run_are_in_its_folder_even_after_its_first_round(tmp_path: Path) -> None:
    rows = [{"prompt": "ab", "seed": seed} for seed in (1, 1, 2, 1)]
    place = tmp_path / "run" / FILE
    message = (
        rf"3 of 4 episodes of 'Fails' failed, .* The first: episode \d, turn 2: .*away.*: {re.escape(str(place))}$"
    )
    with pytest.raises(EpisodesFailed, match=message):
        run(tmp_path, environment=Fails, prompts=rows, trainer=REINFORCE)
    failed = [json.loads(line) for line in place.read_text().splitlines()]
    assert [row["columns"]["seed"] for row in failed] == [1, 1, 1]
    for row in failed:
        assert row["step"] == 0
        assert row["prompt"]
        assert [each["role"] for each in row["transcript"]] == ["assistant", "user", "assistant", "failure"]
        assert row["failure"] == row["transcript"][-1]["content"]


def test_episodes_that_all_fail_are_in_the_folder_of_a_run_that_allows_it(tmp_path: Path) -> None:
    rows = [{"prompt": "ab", "seed": 1}] * 4
    with pytest.raises(RLCoreError):  # nothing is left to learn from
        run(tmp_path, environment=Fails, prompts=rows, trainer=REINFORCE, data={"episodes": {"max_failed": 1.0}})
    assert len((tmp_path / "run" / FILE).read_text().splitlines()) == 4


def test_an_evaluation_whose_episodes_fail_leaves_them_in_the_folder(tmp_path: Path) -> None:
    rows = [{"prompt": "ab", "seed": seed} for seed in (1, 2)]
    with pytest.raises(EpisodesFailed, match=f"1 of 2 episodes .*{FILE}"):
        run(
            tmp_path, environment=Fails, prompts=rows[1:] * 4, eval_prompts=rows, trainer=REINFORCE,
            data={"episodes": {"max_failed": 0.4}}, eval={"at_end": True},
        )  # fmt: skip
    assert len((tmp_path / "run" / FILE).read_text().splitlines()) == 1
