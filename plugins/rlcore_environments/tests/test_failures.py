"""What an environment does wrong ends its episode, not the run; a failed episode has no score."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from env_games import Scripted, make_player, make_policy, play, read_prompts

from rlcore.errors import ConfigError, DataError
from rlcore.protocols import Step, Turn
from rlcore.ranks import Ranks
from rlcore.sampling import derive_seeds
from rlcore.settings import SamplingConfig
from rlcore_environments.answers import factory_of
from rlcore_environments.play import EpisodesFailed

BAD_SEED = derive_seeds(600, [1])[0]
"""Seed of the second row of a run with the seed 0."""


def environment(step: Callable[[Any, Turn], Any]) -> type:
    """Return a class of environments whose first turn has this answer in the second episode."""

    class Made:
        closed: list[int] = []  # noqa: RUF012

        def reset(self, row: Any, *, seed: int) -> str:
            self.is_bad = seed == BAD_SEED
            return "go"

        def step(self, turn: Turn) -> Any:
            return step(self, turn) if self.is_bad else Step(reward=1.0, done=True)

        def close(self) -> None:
            self.closed.append(1)

    return Made


def fail(*_: Any) -> Any:
    raise ValueError("no such door")


BAD: dict[str, tuple[Callable[[Any, Turn], Any], str]] = {
    "raises": (fail, "episode 1, turn 1: the environment raised ValueError: no such door"),
    "exits": (lambda *_: sys.exit(3), "episode 1, turn 1: the environment raised SystemExit: 3"),
    "is nan": (
        lambda *_: Step("x", reward=math.nan),
        "episode 1, turn 1: step returned the reward nan, which is not finite",
    ),
    "is nan by name": (
        lambda *_: Step("x", reward={"form": math.inf}),
        "episode 1, turn 1: step returned the reward inf ('form'), which is not finite",
    ),
    "is no number": (
        lambda *_: Step("x", reward="1"),  # type: ignore[arg-type]
        "episode 1, turn 1: step returned the reward '1', which is not a number",
    ),
    "is None": (lambda *_: None, "episode 1, turn 1: step returned None (NoneType); return a rlcore.protocols.Step"),
    "is silent": (
        lambda *_: Step(reward=1.0),
        "episode 1, turn 1: step returned no messages, though the episode is neither done nor truncated",
    ),
    "speaks as the assistant": (
        lambda *_: Step([{"role": "assistant", "content": "I won"}]),
        "episode 1, turn 1: the last message of step has the role 'assistant'; the policy speaks next, so it must not",
    ),
    "has no role": (lambda *_: Step([{"content": "I"}]), "episode 1, turn 1: step returned the message"),
    "has an unknown key": (
        lambda *_: {"reward": 1.0, "finished": True}, "step returned a mapping with the key 'finished'; known keys:",
    ),
    "hangs": (
        lambda *_: time.sleep(600),
        "episode 1, turn 1: the environment did not return within data.episodes.timeout_s = 5 seconds",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_an_episode_fails_and_the_others_go_on(name: str) -> None:
    step, message = BAD[name]
    made = environment(step)
    batch = play(made, ["x"], ["y"], ["z"], timeout_s=5.0 if name == "hangs" else 300.0)
    assert message in batch.failures[1]
    assert batch.failures[0] == batch.failures[2] == ""
    assert batch.numbers["episode/failed"] == [0.0, 1.0, 0.0]
    assert batch.arguments["environment_rewards"][0] == [0.0, 1.0]
    assert batch.arguments["transcript"][1][-1]["role"] == "failure"
    assert len(made.closed) == 6  # three that read the prompts, and three episodes


def test_more_failures_than_allowed_end_the_run_with_the_first_of_them() -> None:
    """They are counted over all calls of the sampler that belong to a round."""
    policy = make_policy(chat=True)
    player = make_player(environment(fail), data={"episodes": {"max_failed": 0.4}})
    prompts, gen = read_prompts(player, policy, ["a", "b", "c"]), SamplingConfig(max_new_tokens=8)
    sampler: Any = player.sampler(Scripted(["x"], ["y"], ["z"]))  # type: ignore[arg-type]

    def sample(*rows: int) -> None:
        for row in rows:  # one call each
            sampler(policy, [prompts[row]], gen, row_seeds=[row])
        sampler.check_round(ranks)

    ranks = Ranks("no")
    sample(0, 1, 2)
    message = r"1 of 2 episodes of 'Made' failed, more than data\.episodes\.max_failed = 0\.4 .*no such door"
    with pytest.raises(EpisodesFailed, match=message):
        sample(1, 0)
    sample(2)


def test_an_episode_that_is_played_again_has_the_answers_of_the_first_attempt() -> None:
    attempts = list[int]()

    class Shaky:
        def reset(self, row: Any, *, seed: int) -> str:
            self.seen = list[str]()
            return "go"

        def step(self, turn: Turn) -> Step:
            self.seen.append(turn.text)
            if turn.index == 1:
                attempts.append(1)
                if len(attempts) < 3:
                    raise OSError("the server is away")
            assert len(self.seen) == turn.index + 1
            return Step("ok", reward=float(turn.index), done=turn.index == 2)

    batch = play(Shaky, ["x", "y", "z"], retries=2)
    assert batch.failures == [""]
    assert batch.arguments["turns"] == [["x", "y", "z"]]
    assert float(batch["rewards"].sum()) == 3.0
    attempts.clear()
    assert "the server is away" in play(Shaky, ["x", "y", "z"], retries=1).failures[0]


def test_an_observation_longer_than_the_context_ends_the_episode() -> None:
    class Long:
        def reset(self, row: Any, *, seed: int) -> str:
            return "go"

        def step(self, turn: Turn) -> Step:
            return Step("x" * 1000, reward=0.5)

    batch = play(Long, ["x"])
    assert batch.numbers["episode/context"] == [1.0]
    assert batch.tokens.shape[1] < 64
    assert not bool(batch.ended[0])
    assert batch.arguments["environment_rewards"] == [[0.0, 0.5]]


class Asks:
    """It never ends."""

    def reset(self, row: Any, *, seed: int) -> str:
        return "go"

    def step(self, turn: Turn) -> Any:
        return "more", 1.0


def test_every_limit_is_counted_as_the_end_of_an_episode() -> None:
    turns = ["x"] * 20
    assert play(Asks, turns, max_turns=3).numbers["episode/max_turns"] == [1.0]
    batch = play(Asks, turns, max_turns=9, max_new_tokens=5)  # two turns of two tokens, and one of one
    assert batch.numbers["episode/max_new_tokens"] == [1.0]
    assert batch.num_actions.tolist() == [5]
    assert batch.arguments["turns"] == [["x", "x", "x"]]
    cut = play(Asks, ["xyz"], max_turns=1, gen=SamplingConfig(max_new_tokens=2))
    assert cut.arguments["turns"] == [["xy"]]


def test_what_reset_returns_instead_of_messages_is_an_error_before_the_run() -> None:
    def reading(found: Any, timeout_s: float) -> None:
        class Made(Asks):
            def reset(self, row: Any, *, seed: int) -> Any:
                return found() if callable(found) else found

        player, policy = make_player(Made, data={"episodes": {"timeout_s": timeout_s}}), make_policy(chat=True)
        read_prompts(player, policy, [{"level": 1}])

    for found, message in [
        (Step(done=True), "an episode that is over at once must not begin: leave its row out"),
        ("", r"reset returned no messages, and the row has no 'prompt', so the policy has nothing to answer"),
        (7, "reset returned 7 .int., not a text or messages"),
        (lambda: 1 // 0, "reset raised ZeroDivisionError"),
        (lambda: time.sleep(600), r"reset did not return within data\.episodes\.timeout_s = 0\.3 seconds"),
    ]:
        with pytest.raises(DataError, match=r"prompts\[0\]: environment 'Made'.*" + message):
            reading(found, 0.3 if "did not return" in message else 300.0)


def test_a_reset_that_does_not_follow_from_its_seed_fails() -> None:
    letters = iter("abcdefgh")

    class Made(Asks):
        def reset(self, row: Any, *, seed: int) -> str:
            return next(letters)

    assert "take random numbers from `seed` alone" in play(Made, ["x"]).failures[0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Asks(), "is an object of an environment, which only one episode can use; pass its class, Asks"),
        (7, "an environment is a class with reset"),
        (lambda row: Asks(), r"is called without arguments, once for each episode, but takes \(row\)"),
    ],
)
def test_what_is_no_environment_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        factory_of(given)


def test_tools_of_one_name_are_refused() -> None:
    class Made(Asks):
        tools = ({"type": "function", "function": {"name": "add"}}, {"type": "function", "function": {"name": "add"}})

    with pytest.raises(ConfigError, match="two tools are called 'add'"):
        factory_of(Made)


def test_no_more_calls_run_at_a_time_than_allowed() -> None:
    lock, running, most = threading.Lock(), [0], [0]

    class Slow(Asks):
        def step(self, turn: Turn) -> Step:
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            time.sleep(0.02)
            with lock:
                running[0] -= 1
            return Step(done=True)

    play(Slow, *[["x"]] * 12, concurrency=3)
    assert most[0] == 3


def test_coroutines_are_awaited() -> None:
    import asyncio

    class Async:
        async def reset(self, row: Any, *, seed: int) -> str:
            await asyncio.sleep(0)
            return "go"

        async def step(self, turn: Turn) -> Step:
            await asyncio.sleep(0.01)
            return Step("on", reward=1.0, done=turn.index == 1)

    batch = play(Async, ["x", "y"], ["z", "w"])
    assert batch.numbers["episode/done"] == [1.0, 1.0]
    assert batch["rewards"].sum(1).tolist() == [2.0, 2.0]


def test_turns_of_the_assistant_that_the_policy_did_not_write_are_not_trained_on() -> None:
    class Shows(Asks):
        def reset(self, row: Any, *, seed: int) -> Any:
            return [
                {"role": "user", "content": "say x"}, {"role": "assistant", "content": "x"},
                {"role": "user", "content": "again"},
            ]  # fmt: skip

        def step(self, turn: Turn) -> Any:
            example = [{"role": "assistant", "content": "x"}, {"role": "user", "content": "again"}]
            return Step([{"role": "user", "content": "say x"}, *example], reward=1.0, done=turn.index == 1)

    batch = play(Shows, ["yy", "zz"])
    tokenizer = make_policy(chat=True).tokenizer
    assert tokenizer.decode(batch.tokens[0][batch.action_mask[0]]) == "yy</s>zz</s>"
    assert "".join(tokenizer.decode(batch.tokens[0][batch.mask[0]])).count("a x</s>") == 2


@pytest.mark.parametrize("place", ["reset", "step"])
def test_episodes_that_failed_are_played_again_all_at_a_time(place: str) -> None:
    """The second attempts wait for one another, so that none would end if they came one after another."""
    together, made = threading.Barrier(4), list[int]()

    class Meets(Asks):
        def __init__(self) -> None:
            made.append(len(made))
            self.number = made[-1] - 4  # four read the prompts

        def attempt(self, where: str) -> None:
            if where == place and self.number >= 4:
                together.wait(300)
            elif where == place and self.number >= 0:
                raise OSError("away")

        def reset(self, row: Any, *, seed: int) -> str:
            self.attempt("reset")
            return "go"

        def step(self, turn: Turn) -> Step:
            if turn.index == 1:
                self.attempt("step")
            return Step("on", reward=1.0, done=turn.index == 2)

    batch = play(Meets, *[["x", "y", "z"]] * 4, retries=1)
    assert batch.failures == [""] * 4
    assert batch["rewards"].sum(1).tolist() == [3.0] * 4
