"""The environment against the real library, in episodes that are played by hand."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
from gym_games import Fragile

from rlcore.config import structure
from rlcore.errors import ConfigError, DataError
from rlcore.protocols import Step, Turn
from rlcore_environments.gymnasium.config import GymnasiumConfig
from rlcore_environments.gymnasium.environment import Gymnasium

LAKE: dict[str, Any] = {
    "id": "FrozenLake-v1", "options": {"is_slippery": False}, "observe": "gym_games:observe", "success_return": 1,
    "actions": ["left", "down", "right", "up"],
}  # fmt: skip

NUMBERS = itertools.count()


def make(**options: Any) -> Gymnasium:
    return Gymnasium(structure(GymnasiumConfig, options, where="test", path="data.environment"))


def test_an_episode_of_frozen_lake_reaches_the_goal() -> None:
    factory = make(**LAKE, rules="Reach G.")
    assert factory.example_turns == ("left", "down", "right", "up")
    game = factory.make()
    assert game.reset({}, seed=0) == "Reach G.\n\nPFFF\nFHFH\nFFFH\nHFFG"
    first = game.step(Turn("Left or right? I go DOWN.", 0))
    assert first == Step("SFFF\nPHFH\nFFFH\nHFFG", 0.0, info={"invalid": 0.0, "prob": 1.0, "success": False})
    for index, word in enumerate(["down", "right", "down", "right"], 1):
        assert not game.step(Turn(word, index)).done
    last = game.step(Turn("right", 5))
    assert (last.messages, last.reward, last.done, last.truncated) == ("SFFF\nFHFH\nFFFH\nHFFP", 1.0, True, False)
    assert last.info["success"] is True
    game.close()


def test_a_hole_ends_the_episode_without_success() -> None:
    game = make(**LAKE).make()
    game.reset({}, seed=0)
    game.step(Turn("right", 0))
    last = game.step(Turn("down", 1))
    assert (last.done, last.reward, last.info["success"]) == (True, 0.0, False)


def test_the_limit_of_steps_cuts_an_episode_off_and_is_the_limit_of_turns() -> None:
    factory = make(**{**LAKE, "options": {"is_slippery": False, "max_episode_steps": 2}})
    assert factory.max_turns == 2
    game = factory.make()
    game.reset({}, seed=0)
    assert not game.step(Turn("up", 0)).truncated
    last = game.step(Turn("up", 1))
    assert (last.done, last.truncated) == (False, True)


def test_a_turn_without_an_action_is_no_step() -> None:
    for text in ("", "upwards", "leftright"):
        game = make(**LAKE, invalid_reward=-0.5).make()
        game.reset({}, seed=0)
        step = game.step(Turn(text, 0))
        assert (step.reward, step.done, step.info["invalid"]) == (-0.5, False, 1.0)
        assert step.messages == "Write one of: left, down, right, up."
        assert game.step(Turn("right", 1)).messages == "SPFF\nFHFH\nFFFH\nHFFG"
    ended = make(**LAKE, invalid="end").make()
    ended.reset({}, seed=0)
    assert ended.step(Turn("", 0)).done


def test_numbers_are_actions_where_there_are_no_words() -> None:
    game = make(id="FrozenLake-v1", options={"is_slippery": False}).make()
    assert game.reset({}, seed=0) == "0"
    assert game.step(Turn("0? No: 1.", 0)).messages == "4"  # down, in a lake of 4 columns
    assert game.step(Turn("action 7", 1)).info["invalid"] == 1.0


def play(game: Any, seed: int) -> Any:
    yield game.reset({}, seed=seed)
    for index in range(20):
        number = next(NUMBERS)  # an episode depends on no global state
        random.seed(number)
        np.random.seed(number)  # noqa: NPY002  the global state
        step = game.step(Turn(str(index % 2), index))
        yield step.messages, step.reward, step.done
        if step.done:
            return


@pytest.mark.parametrize("name", ["CartPole-v1", "Blackjack-v1"])
def test_only_the_seed_decides_and_two_episodes_in_turns_do_not_interfere(name: str) -> None:
    factory = make(id=name)
    seeds = [0, 1, 2**63 - 1]
    alone = [list(play(factory.make(), seed)) for seed in seeds]
    assert alone == [list(play(factory.make(), seed)) for seed in seeds]
    assert len({str(each) for each in alone}) == 3
    games, together = [play(factory.make(), seed) for seed in seeds], [[], [], []]  # type: ignore[var-annotated]
    for _ in range(21):
        for game, found in zip(games, together, strict=True):
            found += [each for each in [next(game, None)] if each is not None]
    assert together == alone


def test_rows_of_the_two_splits_share_no_seed() -> None:
    factory = make(id="Blackjack-v1", train_rows=5, eval_rows=3, seed=10)
    assert factory.rows("eval") == [{"seed": 10}, {"seed": 11}, {"seed": 12}]
    assert [row["seed"] for row in factory.rows("train") or ()] == [13, 14, 15, 16, 17]
    assert make(id="Blackjack-v1", eval_rows=0).rows("eval") is None


def test_own_functions_options_of_a_row_and_failures() -> None:
    factory = make(id="gym_games:Fragile-v0", act="gym_games:act")
    game = factory.make()
    assert game.reset({"options": {"start": 1}}, seed=0) == "1"
    assert Fragile.open
    step = game.step(Turn("go 0.5", 0))
    assert (step.reward, dict(step.info)) == (0.5, {"invalid": 0.0, "place": 0.5})
    with pytest.raises(ArithmeticError, match="fell off"):
        game.step(Turn("go -1", 1))
    game.close()
    game.close()
    assert not Fragile.open
    silent = make(id="gym_games:Fragile-v0", act="gym_games:act", observe=lambda observation, env: observation).make()
    with pytest.raises(TypeError, match=r"observe returned 0 \(int\), not a text"):
        silent.reset({}, seed=0)
    silent.close()
    assert not Fragile.open


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "id: must be given"),
        ({"id": "FrozenLake-v9"}, r"id = 'FrozenLake-v9': cannot be made: VersionNotFound"),
        ({"id": "FrozenLake-v1", "options": {"slippery": 1}}, "cannot be made: TypeError.*'slippery'"),
        ({"id": "no_such_module:Game-v0"}, "cannot be made: ModuleNotFoundError"),
        ({"id": "FrozenLake-v1", "actions": ["left", "right"]}, r"actions = \['left', 'right'\]: must be 4 different"),
        ({"id": "FrozenLake-v1", "actions": ["a", "A", "b", "c"]}, "must be 4 different words"),
        ({"id": "gym_games:Fragile-v0"}, r"act: the actions of this environment are Box\(-1.0"),
        ({"id": "FrozenLake-v1", "observe": "gym_games:nothing"}, "observe = 'gym_games:nothing'.* has no 'nothing'"),
        ({"id": "FrozenLake-v1", "act": 3}, "act = 3: must be a function"),
        ({"id": "FrozenLake-v1", "invalid": "ask"}, "invalid = 'ask': must be one of 'repeat', 'end'"),
        ({"id": "FrozenLake-v1", "action": []}, "data.environment.action: no such option; did you mean 'actions'"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        make(**options)
