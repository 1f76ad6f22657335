"""What an environment states about itself and about its rewards, and the rows that it brings, are checked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from env_games import Echo, make_player, make_policy, play, read_prompts
from episode_runs import at, constant, lines, run

from rlcore.errors import ConfigError, DataError
from rlcore.protocols import Step, Turn
from rlcore_environments.answers import factory_of

REINFORCE = {"name": "reinforce", "rollouts": 4}


class Silent(Echo):
    """It gives no reward."""

    def step(self, turn: Turn) -> Step:
        return Step("on", done=True)


class Declared(Silent):
    gives_rewards = False


def adds(a: int) -> int:
    """Add one.

    Args:
        a: The number.
    """
    return a + 1


@pytest.mark.parametrize(
    "reward_fn", [None, "environment", ["environment"], {"all": "environment"}, [("environment", 1.0)]]
)
@pytest.mark.parametrize("given", [{"environment": Declared}, {"environment": None, "tools": [adds]}])
def test_an_environment_that_states_that_it_gives_no_rewards_needs_a_reward_function(
    given: Any, reward_fn: Any, tmp_path: Path
) -> None:
    message = r"gives no rewards, and there is no reward function.* 'reinforce' learns nothing; give a reward function"
    with pytest.raises(ConfigError, match=message):
        run(tmp_path, trainer=REINFORCE, reward_fn=reward_fn, **given)


class Odd(Declared):
    gives_rewards = np.True_
    example_turns = ("", "a")


def test_flags_may_be_those_of_numpy_and_a_text_of_an_example_may_be_empty() -> None:
    factory = factory_of(Odd)
    assert (factory.gives_rewards, factory.example_turns) == (True, ("", "a"))


def test_with_a_reward_function_or_a_trainer_that_needs_none_no_rewards_are_fine(tmp_path: Path) -> None:
    assert run(tmp_path, trainer=REINFORCE, environment=Declared, reward_fn=constant).metrics["reward/mean"] == 1.0
    make_player(Declared, trainer={"name": "sft"}).sampler(len)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "warns"),
    [({"environment": Silent}, 1), ({"environment": Echo}, 0), ({"environment": Silent, "reward_fn": constant}, 0)],
)
def test_a_first_round_without_any_reward_is_a_warning_once(
    given: Any, warns: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, trainer=REINFORCE, run=at(tmp_path, steps=3), gen={"max_new_tokens": 20}, **given)
    assert capfd.readouterr().err.count("no episode of the first round had a reward") == warns


@pytest.mark.parametrize("name", ["max_turns", "concurrency"])
@pytest.mark.parametrize("value", [-1, "3", 2.5, True])
def test_a_count_that_is_no_whole_number_is_refused(name: str, value: Any) -> None:
    made = type("Made", (Echo,), {name: value})
    with pytest.raises(ConfigError, match=rf"environment = Made: {name} = .*must be a whole number, at least 1, or 0"):
        factory_of(made)


def test_no_limit_of_turns_is_zero_or_none() -> None:
    assert [factory_of(type("Made", (Echo,), {"max_turns": each})).max_turns for each in (0, None, 3)] == [0, 0, 3]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("replayable", "false", r"replayable = 'false': must be True or False"),
        ("gives_rewards", 0, r"gives_rewards = 0: must be True or False"),
        ("example_turns", "ab", r"example_turns = 'ab': must be a list of texts"),
        ("reward_names", "ab", r"reward_names = 'ab': must be a list of names"),
    ],
)
def test_other_statements_are_checked_too(name: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        factory_of(type("Made", (Echo,), {name: value}))


def test_statements_of_an_environment_in_a_process_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"environment = Overstated: max_turns = '3' \(str\): must be a whole number"):
        make_player("isolated_games:Overstated", data={"episodes": {"isolate": "process"}})
    for isolate in ("process", "episode"):
        player = make_player("isolated_games:Listed", data={"episodes": {"isolate": isolate}})
        with pytest.raises(ConfigError, match=r"environment = Listed: has rows = \[\{'seed': 1\}\] \(list\)"):
            player.rows("train")
        player.close()


LEVELS = [{"level": 1}, {"level": 2}]


def levels(split: str) -> Any:
    return LEVELS if split == "train" else None


async def later(split: str) -> Any:
    return levels(split)


def one_by_one(split: str) -> Iterator[Any]:
    yield from levels(split) or ()


async def one_by_one_later(split: str) -> AsyncIterator[Any]:
    for row in levels(split) or ():
        yield row


@pytest.mark.parametrize("rows", [levels, later, one_by_one, one_by_one_later, lambda split: iter(LEVELS)])
def test_rows_are_returned_or_yielded_by_a_function_or_a_coroutine(rows: Any) -> None:
    for made in (staticmethod(rows), classmethod(lambda cls, split: rows(split))):
        assert make_player(type("Made", (Echo,), {"rows": made})).rows("train") == LEVELS


def of_object(self: Any, split: str) -> Any:
    return LEVELS


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (LEVELS, r"has rows = \[\{'level': 1\}.* \(list\), which is no method; write a static method rows\(split\)"),
        (
            of_object,
            r"has a method rows\(self, split\), and it is called as rows\(split\) on the class, before there is",
        ),
        (staticmethod(lambda: LEVELS), r"has a method rows\(\), and .* \(too many positional arguments\); make it"),
    ],
)
def test_rows_that_cannot_be_called_with_a_split_are_refused(rows: Any, message: str) -> None:
    """They may be something else, such as the size of a board, if the user gives the prompts."""
    player = make_player(type("Made", (Echo,), {"rows": rows}))
    with pytest.raises(ConfigError, match=r"environment = Made: " + message):
        player.rows("train")
    assert player.rows("eval") is None


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            {"level": [1, 2]},
            r"rows\('train'\) returned \{'level': \[1, 2\]\} \(dict\), which is no list of rows; return",
        ),
        ("abc", r"rows\('train'\) returned 'abc' \(str\), which is no list of rows"),
        (3, r"rows\('train'\) returned 3 \(int\), which is no list of rows"),
        ([{"level": 1}, "b"], r"rows\('train'\)\[1\] is 'b' \(str\), which is no mapping of names to values"),
        ([3], r"rows\('train'\)\[0\] is 3 \(int\), which is no mapping"),
        ([], r"rows\('train'\) returned no rows, so there is nothing to play"),
    ],
)
def test_what_rows_returns_instead_of_rows_is_named(found: Any, message: str) -> None:
    player = make_player(type("Made", (Echo,), {"rows": staticmethod(lambda split: found)}))
    with pytest.raises(DataError, match=r"data\.environment 'Made': " + message):
        player.rows("train")


def test_a_row_without_a_key_that_reset_needs_is_shown() -> None:
    class Needs(Echo):
        def reset(self, row: Any, *, seed: int) -> str:
            return str(row["level"])

    player = make_player(Needs)
    message = r"prompts\[0\]: environment 'Needs': reset raised KeyError: 'level' at .*; the row is \{'depth': 1"
    with pytest.raises(DataError, match=message):
        read_prompts(player, make_policy(chat=True), [{"depth": 1}])


def test_rows_to_evaluate_on_of_the_environment_are_used_where_the_user_gives_prompts_alone(tmp_path: Path) -> None:
    class Both(Echo):
        @staticmethod
        def rows(split: str) -> Any:
            return [{"prompt": "held"}] if split == "eval" else [{"prompt": "own"}]

    how = {"trainer": REINFORCE, "environment": Both, "eval": {"at_end": True}}
    found = lines(run(tmp_path, **how), "completions.jsonl")
    assert {"held" in row["prompt"] for row in found} == {True}
    found = lines(run(tmp_path, **how, eval_prompts=["cb"], run=at(tmp_path, steps=1, name="two")), "completions.jsonl")
    assert {"held" in row["prompt"] for row in found} == {False}


def test_the_policy_goes_on_where_the_first_messages_end_with_the_assistant() -> None:
    class Begun(Echo):
        def reset(self, row: Any, *, seed: int) -> Any:
            return [{"role": "user", "content": "go"}, {"role": "assistant", "content": "x"}]

    batch = play(Begun, ["yz", "y", "z"])
    tokenizer: Any = make_policy(chat=True).tokenizer
    assert "go.a xyz</s>you z.a y</s>" in tokenizer.decode(batch.tokens[0][batch.mask[0]]).replace("u you", "you")
    assert batch.arguments["turns"] == [["yz", "y", "z"]]


def test_a_reward_has_precedence_over_a_number_in_info_of_its_name() -> None:
    class Twice(Echo):
        def step(self, turn: Turn) -> Step:
            return Step(reward={"won": 0.5}, info={"won": 3}, done=True)

    assert play(Twice, ["x"]).numbers["environment/won"] == [0.5]


class Unread(Echo):
    @staticmethod
    def rows(split: str) -> list[dict[str, str]]:
        raise FileNotFoundError("no such file: held_out.jsonl")


def test_rows_to_evaluate_on_that_cannot_be_read_name_the_way_to_others(tmp_path: Path) -> None:
    message = r"rows\('eval'\) raised .*held_out\.jsonl.*; give eval_prompts to evaluate on other rows"
    with pytest.raises(DataError, match=message):
        run(tmp_path, trainer=REINFORCE, environment=Unread, reward_fn=constant)


def test_attributes_are_those_of_what_is_passed_and_not_of_the_object_that_a_function_returns() -> None:
    def play() -> Declared:
        return Declared()

    assert factory_of(play).gives_rewards
    play.gives_rewards = False  # type: ignore[attr-defined]
    assert not factory_of(play).gives_rewards
