"""The environment against the real library, in episodes that are played by hand."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlcore.config import structure
from rlcore.errors import ConfigError
from rlcore.protocols import Step, Turn
from rlcore_environments.textarena.config import TextArenaConfig
from rlcore_environments.textarena.environment import TextArena

GUESS: dict[str, Any] = {"id": "GuessTheNumber-v0", "options": {"max_number": 8}}
DICE = {"id": "LiarsDice-v0-small", "players": 2, "opponent": "arena_players:raises_the_bid"}
TIC_TAC_TOE = {"id": "TicTacToe-v0", "players": 2, "opponent": "arena_players:takes_a_free_cell"}
NUMBERS = itertools.count()


def make(**options: Any) -> TextArena:
    return TextArena(structure(TextArenaConfig, options, where="test", path="data.environment"))


def test_halving_the_range_wins_guess_the_number_and_each_observation_is_new() -> None:
    factory, secrets = make(**GUESS), set()
    for seed in range(30):
        game, low, high = factory.make(), 1, 8
        assert "between 1 and 8" in game.reset({}, seed=seed)
        for index in range(4):
            guess = (low + high) // 2
            step = game.step(Turn(str(guess) if index % 2 else f"I guess [{guess}].", index))
            if step.done:
                break
            assert step.messages == f"The target number is {'higher' if 'higher' in step.messages else 'lower'}."
            assert step.reward == 0.0
            low, high = (guess + 1, high) if "higher" in step.messages else (low, guess - 1)
        assert (step.reward, step.info) == (1.0, {"success": True, "invalid_move": 0.0})
        secrets.add(guess)
    assert secrets == set(range(1, 9))


def test_invalid_moves_end_a_game_with_the_librarys_reward() -> None:
    game = make(**GUESS).make()
    game.reset({}, seed=0)
    first = game.step(Turn("no number", 0))
    assert "Please resubmit a valid move" in str(first.messages)
    assert not first.done
    second = game.step(Turn("no number", 1))
    assert second.done
    assert second.info == {"success": False, "invalid_move": 1.0}


@pytest.mark.parametrize("seat", [0, 1])
def test_a_game_of_two_is_played_from_either_seat(seat: int) -> None:
    factory = make(**TIC_TAC_TOE, seat=seat)
    rewards = set()
    for seed in range(12):
        game = factory.make()
        text, index = game.reset({}, seed=seed), 0
        assert text.startswith(f"You are Player {seat} in Tic Tac Toe.")
        assert text.count("[Player") == seat  # the move of the other one, who began
        step = Step(text)
        while not step.done:
            free = str(step.messages).rpartition("Available Moves: ")[2]
            step = game.step(Turn(free.split("'")[1], index))
            index += 1
        assert index <= 5
        assert step.info["success"] is (step.reward == 1.0)
        rewards.add(step.reward)
    assert len(rewards) > 1  # won by some seeds, not by others


def disturb() -> None:
    number = next(NUMBERS)  # an episode depends on no global state
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002  the global state


def play(factory: TextArena, seed: int, between: Callable[[], None] = disturb) -> Any:
    game, moves = factory.make(), ["[Call]", "[Bid: 2, 3]"] if factory.opponent else ["[2]", "[7]", "[5]", "[4]"]
    yield game.reset({}, seed=seed)
    for index in range(12):
        between()
        step = game.step(Turn(moves[index % len(moves)], index))
        yield step
        if step.done:
            return


@pytest.mark.parametrize("options", [GUESS, DICE], ids=["guess", "dice"])
def test_games_in_turns_are_the_same_as_one_after_the_other(options: dict[str, Any]) -> None:
    factory = make(**options)
    seeds = (1, 2, 2**63 - 1)
    alone = [list(play(factory, seed)) for seed in seeds]
    assert len({str(each) for each in alone}) > 1
    games = [play(factory, seed) for seed in seeds]
    together: list[list[Any]] = [[], [], []]
    for _ in range(13):
        for game, found in zip(games, together, strict=True):
            found += [each for each in [next(game, None)] if each is not None]
    assert together == alone


def test_games_in_threads_are_the_same_as_one_after_the_other() -> None:
    factories = [make(**options) for options in (GUESS, DICE, TIC_TAC_TOE)]
    games = [(factory, seed) for seed in range(12) for factory in factories]
    alone = [list(play(*game)) for game in games]
    began = threading.Barrier(8)
    with ThreadPoolExecutor(8, initializer=began.wait) as threads:
        assert list(threads.map(lambda game: list(play(*game, lambda: None)), games)) == alone


@pytest.mark.parametrize("name", ["Poker-v0-small", "SantoriniBaseFixed-v0"])
def test_a_game_that_goes_on_asking_a_player_whose_moves_are_invalid_fails_by_name(name: str) -> None:
    asked = itertools.count()
    stuck = make(id=name, players=2, seat=1, opponent=lambda observation, rng: f"no move {next(asked)}")
    with pytest.raises(RuntimeError, match=r"player 0 had 100 turns in a row.*\(its last move: 'no move"):
        stuck.make().reset({}, seed=1)
    assert next(asked) <= 200


def test_a_game_that_goes_on_asking_the_policy_whom_it_has_eliminated_fails_by_name() -> None:
    poker = make(id="Poker-v0-small", players=2, opponent=lambda observation, rng: "[Call]").make()
    poker.reset({}, seed=1)
    assert not poker.step(Turn("no move", 0)).done  # one is forgiven
    with pytest.raises(RuntimeError, match="the game asks player 0, whom it has eliminated, and so gives no reward"):
        poker.step(Turn("no move", 1))


def test_games_leave_the_global_generators_as_they_are() -> None:
    factory = make(**DICE)
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002  the global state
    expected = random.Random(5).random(), np.random.RandomState(5).rand()
    game = factory.make()
    game.reset({}, seed=1)
    game.step(Turn("[Call]", 0))
    game.step(Turn("[Bid: 2, 3]", 1))
    assert (random.random(), np.random.rand()) == expected  # noqa: NPY002  the global state


@pytest.mark.slow
def test_only_the_seed_decides_in_another_process() -> None:
    games = "(GUESS, DICE, TIC_TAC_TOE)"
    program = f"from test_environment import *\nfor o in {games}:\n print(make(**o).make().reset({{}}, seed=4))"
    said = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parent, env={"PYTHONHASHSEED": "1"}, check=True,
        capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert said == "".join(make(**options).make().reset({}, seed=4) + "\n" for options in (GUESS, DICE, TIC_TAC_TOE))


def test_rows_of_the_two_splits_share_no_seed() -> None:
    factory = make(**GUESS, train_rows=4, eval_rows=2, seed=7)
    assert factory.rows("eval") == [{"seed": 7}, {"seed": 8}]
    assert [row["seed"] for row in factory.rows("train") or ()] == [9, 10, 11, 12]
    assert make(**GUESS, eval_rows=0).rows("eval") is None


def test_what_a_game_or_an_opponent_raises_is_raised() -> None:
    lost = make(**{**TIC_TAC_TOE, "opponent": "arena_players:does_nothing"}).make()
    lost.reset({}, seed=0)
    with pytest.raises(TypeError, match=r"opponent returned None \(NoneType\), not a text"):
        lost.step(Turn("[4]", 0))
    broken = make(**{**TIC_TAC_TOE, "opponent": lambda observation, rng: observation[10**6]}).make()
    broken.reset({}, seed=0)
    with pytest.raises(IndexError):
        broken.step(Turn("[4]", 0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "id: must be given"),
        (
            {"id": "GuessTheNumbers-v0"},
            "id = 'GuessTheNumbers-v0': TextArena has no such game; did you mean",
        ),
        ({"id": "GuessTheNumber-v0", "options": {"most": 3}}, "cannot begin with players = 1 .*'most'"),
        (
            {"id": "TicTacToe-v0"},
            "'TicTacToe-v0' cannot begin with players = 1 .*AssertionError: The number",
        ),
        ({"id": "TicTacToe-v0", "players": 2}, "opponent = None: a game with players = 2 needs `opponent`"),
        ({**GUESS, "opponent": "arena_players:does_nothing"}, "players = 1 takes no `opponent`"),
        ({**TIC_TAC_TOE, "seat": 2}, "seat = 2: must be below players = 2"),
        ({**TIC_TAC_TOE, "opponent": 5}, "opponent = 5: must be a function"),
        ({**GUESS, "seed": -1}, r"seed = -1: must lie in \[0"),
        ({**GUESS, "opponents": 1}, "data.environment.opponents: no such option"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**options)
