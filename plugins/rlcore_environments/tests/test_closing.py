"""Environments are closed when their episodes end, also those that are made too late."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import structlog.testing
from env_games import Scripted, make_player, make_policy, play, read_prompts

from rlcore.config import evolve
from rlcore.errors import DataError
from rlcore.protocols import Step, Turn
from rlcore.settings import SamplingConfig
from rlcore_transformers.sampling.sampler import sample


class Counts:
    """It notes turns and closings; an episode ends with the turn "x"."""

    events: list[str] = []  # noqa: RUF012

    def reset(self, row: Any, *, seed: int) -> str:
        return "go"

    def step(self, turn: Turn) -> Step:
        self.events.append(turn.text)
        return Step("on", reward=1.0, done=turn.text == "x")

    def close(self) -> None:
        self.events.append("close")


def test_an_environment_is_closed_as_soon_as_its_episode_has_ended() -> None:
    class Made(Counts):
        events: list[str] = []  # noqa: RUF012

    policy, player = make_policy(chat=True), make_player(Made, data={"episodes": {"concurrency": 1}})
    prompts = read_prompts(player, policy, ["a", "b"])
    Made.events.clear()
    sampler: Any = player.sampler(Scripted(["x"], ["y", "z", "x"]))  # type: ignore[arg-type]
    sampler(policy, prompts, SamplingConfig(max_new_tokens=8), row_seeds=[0, 1])
    assert Made.events == ["x", "y", "close", "z", "x", "close"]


def test_an_environment_that_is_made_too_late_is_closed_by_the_thread_that_made_it() -> None:
    made, closed, over = list[int](), threading.Event(), threading.Event()

    class Made(Counts):
        def close(self) -> None:
            if self.is_late:
                closed.set()

        is_late = False

    def make() -> Made:
        environment = Made()
        made.append(1)
        if len(made) == 3:  # the first two read the prompts
            over.wait(600)
            environment.is_late = True
        return environment

    batch = play(make, ["x"], ["x"], timeout_s=5.0, concurrency=1)
    over.set()
    assert sorted(batch.numbers["episode/failed"]) == [0.0, 1.0]
    assert closed.wait(300)


def test_a_hanging_step_does_not_stop_the_loop() -> None:
    """Turns are sampled one row at a time, longest first: the second row begins first, and the first one waits."""
    hung, order = threading.Event(), list[int]()

    class Made(Counts):
        def reset(self, row: Any, *, seed: int) -> str:
            self.row = row["level"]
            return "go" * (1 + 4 * self.row)

        def step(self, turn: Turn) -> Step:
            order.append(self.row)
            if len(order) == 1:
                hung.wait()
            return Step(reward=1.0, done=True)

    player = make_player(Made, data={"episodes": {"concurrency": 1, "timeout_s": 5.0}})
    policy, done, found = make_policy(chat=True), threading.Event(), list[Any]()
    prompts = read_prompts(player, policy, [{"level": 0}, {"level": 1}])
    gen = evolve(SamplingConfig(max_new_tokens=2), batch_size=1)

    def run() -> None:
        found.append(player.sampler(sample)(policy, prompts, gen, row_seeds=[1, 2]))
        done.set()

    threading.Thread(target=run, daemon=True).start()
    assert done.wait(300), "the loop waits for ever"
    hung.set()
    assert order == [1, 0]
    assert found[0].numbers["episode/failed"] == [0.0, 1.0]


@pytest.mark.slow
def test_each_call_that_is_played_again_has_its_own_time() -> None:
    attempts = list[int]()

    class Made(Counts):
        def step(self, turn: Turn) -> Step:
            time.sleep(2)
            if turn.text == "x" and not attempts:
                attempts.append(1)
                raise OSError("the server is away")
            return super().step(turn)

    batch = play(Made, ["y", "y", "y", "x"], retries=1, timeout_s=5.5)
    assert batch.failures == [""]
    assert attempts == [1]


@pytest.mark.parametrize("fails_at", ["close", "reset"])
def test_an_error_in_closing_is_a_warning_also_where_prompts_are_read(fails_at: str) -> None:
    class Made(Counts):
        def reset(self, row: Any, *, seed: int) -> str:
            if fails_at == "reset":
                raise ValueError("no board")
            return "go"

        def close(self) -> None:
            raise RuntimeError("no close")

    with structlog.testing.capture_logs() as logs:
        if fails_at == "close":
            batch = play(Made, ["x"])
            assert batch.failures == [""]
        else:
            with pytest.raises(DataError, match=r"environment 'Made': reset raised ValueError: no board"):
                play(Made, ["x"])
    structlog.reset_defaults()  # capture_logs leaves structlog configured, and later logs go there
    warned = [each["error"] for each in logs if each["event"] == "an environment could not be closed"]
    assert warned == ["RuntimeError: no close"] * (2 if fails_at == "close" else 1)


def test_a_close_that_hangs_is_a_warning_that_names_it_also_where_prompts_are_read() -> None:
    hung = threading.Event()

    class Made(Counts):
        def close(self) -> None:
            hung.wait()

    with structlog.testing.capture_logs() as logs:
        batch = play(Made, ["x"], timeout_s=5.0)
    structlog.reset_defaults()  # capture_logs leaves structlog configured, and later logs go there
    hung.set()
    assert batch.failures == [""]
    warned = [each["error"] for each in logs if each["event"] == "an environment could not be closed"]
    assert warned == ["close did not return within data.episodes.timeout_s = 5 seconds"] * 2


def test_a_reset_that_hangs_is_named_although_its_environment_has_a_close() -> None:
    hung = threading.Event()

    class Made(Counts):
        def reset(self, row: Any, *, seed: int) -> str:
            hung.wait()
            return "go"

    with pytest.raises(DataError, match=r"environment 'Made': reset did not return within data\.episodes\.timeout_s"):
        play(Made, ["x"], timeout_s=0.3)
    hung.set()
