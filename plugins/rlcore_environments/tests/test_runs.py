"""What a run with an environment records, evaluates and refuses."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from env_games import Scripted, make_player
from test_training import Fails, at, constant, lines, run

from rlcore.errors import ConfigError, RLCoreError
from rlcore.sampling import takes
from rlcore_environments.sampler import EpisodesFailed
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
    episodes = {"timeout_s": 5.0, "concurrency": 2, "max_failed": 1.0, "retries": 1, "keep_states": False}
    run(tmp_path, trainer=REINFORCE, data={"episodes": episodes}, run=at(tmp_path, steps=2, resume="auto"))
    more = {"max_new_tokens": 6}
    with pytest.raises(RLCoreError, match=r"data\.episodes\.max_new_tokens"):
        run(tmp_path, trainer=REINFORCE, data={"episodes": more}, run=at(tmp_path, steps=3, resume="auto"))


def test_a_metric_function_receives_what_rewards_receive_of_episodes_that_did_not_fail(tmp_path: Path) -> None:
    seen = list[int]()

    def said(outputs: Any, turns: Any, info: Any, transcript: Any) -> dict[str, list[float]]:
        assert all(about["end"] == "done" for about in info)
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
