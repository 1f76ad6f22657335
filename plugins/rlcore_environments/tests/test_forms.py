"""What methods return and take in another form than an environment's is named, before the run where it can be."""

from __future__ import annotations

from typing import Any

import pytest
from env_games import make_player, make_policy, play, read_prompts

from rlcore.errors import ConfigError, DataError
from rlcore.protocols import Step, Turn
from rlcore_environments.answers import factory_of


@pytest.mark.parametrize("isolate", ["none", "process"])
def test_a_truth_value_alone_is_neither_an_end_nor_a_reward(isolate: str) -> None:
    """In a `Step`, where it is named, it counts as a reward of 1 or 0."""
    batch = play("isolated_games:Truths", ["a"], ["b"], ["c"], ["d"], isolate=isolate, max_failed=1.0)
    assert "step returned True, and True may mean an end or a reward; return Step(done=True)" in batch.failures[0]
    assert "'next', False" in batch.failures[1]
    assert "and False may mean an end or a reward" in batch.failures[1]
    assert "5 values as Gymnasium's step does; return Step(observation, reward=" in batch.failures[2]
    assert batch.failures[3] == ""
    assert batch["rewards"].sum(1).tolist() == [0.0, 0.0, 0.0, 1.0]


class Game:
    def reset(self, row: Any, *, seed: int) -> Any:
        return "go"

    def step(self, turn: Turn) -> Any:
        return Step(done=True)


class Gym(Game):
    def reset(self, row: Any, *, seed: int) -> Any:
        return "go", {"hint": 3}


def test_a_reset_that_returns_the_pair_of_gymnasium_is_refused_before_the_run() -> None:
    player = make_player(Gym)
    message = r"prompts\[0\]: environment 'Gym': reset returned .* as Gymnasium's reset does; return the first messages"
    with pytest.raises(DataError, match=message):
        read_prompts(player, make_policy(chat=True), ["a"])


def test_two_messages_are_no_such_pair() -> None:
    class Two(Game):
        def reset(self, row: Any, *, seed: int) -> Any:
            return {"role": "system", "content": "be brief"}, {"role": "user", "content": "go"}

    assert play(Two, ["x"]).failures == [""]


class NoSeed(Game):
    def reset(self, row: Any) -> Any:
        return "go"


class NoTurn(Game):
    def step(self) -> Any:
        return 1.0


class More(Game):
    def step(self, turn: Turn, state: Any) -> Any:
        return 1.0


WRONG = [
    (
        NoSeed,
        r"= NoSeed: has a method reset\(self, row\), and it is called as reset\(row, seed=\.\.\.\) \(got an unexpected",
    ),
    (NoTurn, r"= NoTurn: has a method step\(self\), and it is called as step\(turn\) \(too many positional arguments"),
    (More, r"= More: has a method step\(self, turn, state\), and it is called as step\(turn\) \(missing a required"),
]


@pytest.mark.parametrize(("made", "message"), WRONG)
def test_a_class_whose_methods_take_other_arguments_is_refused_before_its_rows_are_read(
    made: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        factory_of(made)


def test_an_object_whose_methods_take_other_arguments_is_refused_before_the_run() -> None:
    player = make_player(lambda: NoTurn())  # noqa: PLW0108  a class is refused earlier
    with pytest.raises(DataError, match=r"prompts\[0\]: .*made an object of NoTurn, which has a method step\(\)"):
        read_prompts(player, make_policy(chat=True), ["a"])


def test_a_class_in_a_process_whose_methods_take_other_arguments_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"environment = Signless: has a method step\(self\)"):
        make_player("isolated_games:Signless", data={"episodes": {"isolate": "process"}})


def test_methods_may_be_static_and_take_more_than_they_need() -> None:
    class Static:
        @staticmethod
        def reset(row: Any, seed: int = 0, **others: Any) -> str:
            return "go"

        @classmethod
        def step(cls, *arguments: Any) -> Step:
            return Step(reward=1.0, done=True)

    assert play(Static, ["x"])["rewards"].sum() == 1.0
