"""Environments in a process of their own have the same results, and their death ends their episodes alone."""

from __future__ import annotations

import os
import subprocess
import venv
from pathlib import Path

import pytest
from env_games import Scripted, make_player, make_policy, play, read_prompts
from isolated_games import Dice

from rlcore.errors import ConfigError, DataError
from rlcore.settings import SamplingConfig

NAME = "isolated_games:Dice"


def processes(batch: object) -> set[int]:
    return {info["pid"] for info in batch.arguments["info"] if "pid" in info}  # type: ignore[attr-defined]


@pytest.mark.parametrize("isolate", ["process", "episode"])
@pytest.mark.parametrize("given", [NAME, Dice], ids=["named", "passed"])
def test_results_in_a_process_are_those_in_this_one(given: object, isolate: str) -> None:
    script = ["a", "bc"], ["d", "print"], ["e", "f"]
    here, there = play(Dice, *script), play(given, *script, isolate=isolate)
    assert there.tokens.tolist() == here.tokens.tolist()
    assert there["rewards"].tolist() == here["rewards"].tolist()
    assert there.outputs == here.outputs
    assert processes(here) == {os.getpid()}
    assert os.getpid() not in processes(there)
    assert len(processes(there)) == (1 if isolate == "process" else 3)


def test_a_process_that_dies_ends_its_episodes_and_is_started_again() -> None:
    policy, player = make_policy(chat=True), make_player(NAME, data={"episodes": {"isolate": "episode"}})
    assert [row["seed"] for row in player.rows("train") or ()] == [0, 1, 2]
    assert [row["seed"] for row in player.rows("eval") or ()] == [9]
    player.close()
    batch = play(NAME, ["a", "b"], ["die", "b"], ["raise", "c"], isolate="episode", max_failed=0.9)
    assert batch.failures[0] == ""
    assert batch.failures[1] == (
        "episode 1, turn 1: the environment is gone: its process ended with code 3; its last output: out of luck"
    )
    assert batch.failures[2] == "episode 2, turn 1: the environment raised ValueError: no such door"
    shared = make_player(NAME, data={"episodes": {"isolate": "process", "max_failed": 1.0}})
    prompts = read_prompts(shared, policy, ["a", "b"])
    gen = SamplingConfig(max_new_tokens=8)
    first = shared.sampler(Scripted(["die"], ["a", "b"]))(policy, prompts, gen, row_seeds=[0, 1])  # type: ignore[arg-type]
    assert first.numbers["episode/failed"] == [1.0, 1.0]  # type: ignore[attr-defined]
    then = shared.sampler(Scripted(["a", "b"], ["c", "d"]))(policy, prompts, gen, row_seeds=[0, 1])  # type: ignore[arg-type]
    assert then.numbers["episode/failed"] == [0.0, 0.0]  # type: ignore[attr-defined]
    shared.close()


@pytest.mark.slow
def test_a_process_may_have_the_python_of_another_virtual_environment(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    python = str(tmp_path / "venv" / "bin" / "python")
    assert subprocess.run([python, "-c", "import rlcore"], capture_output=True, check=False, cwd=tmp_path).returncode
    batch = play(NAME, ["a", "b"], isolate="process", python=python)
    assert batch.numbers["episode/done"] == [1.0]


def test_what_cannot_be_isolated_is_refused() -> None:
    def local() -> Dice:
        return Dice()

    with pytest.raises(
        ConfigError, match=r"cannot be sent to another process .*name it as environment='module:attribute'"
    ):
        play(local, ["a"], isolate="process")
    with pytest.raises(ConfigError, match="could not load it: ModuleNotFoundError: No module named 'no_such_games'"):
        play("no_such_games:Dice", ["a"], isolate="process")
    with pytest.raises(ConfigError, match=r"data\.episodes\.python = '/no/python': cannot be started: No such file"):
        play(NAME, ["a"], isolate="process", python="/no/python")


def test_an_error_in_reset_is_reported_before_the_run() -> None:
    player = make_player("isolated_games:max_calls.append", data={"episodes": {"isolate": "process"}})
    with pytest.raises(DataError, match=r"prompts\[0\]: environment 'append': reset raised TypeError"):
        read_prompts(player, make_policy(chat=True), ["a"])
    player.close()
