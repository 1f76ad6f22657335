"""Environments in a process of their own have the same results, and their death ends their episodes alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest
from env_games import TEMPLATE, Scripted, make_player, make_policy, play, read_prompts
from isolated_games import Dice, Keys, Pairs

import rlcore
from rlcore.errors import ConfigError, DataError
from rlcore.protocols import Turn
from rlcore.settings import SamplingConfig
from rlcore_environments import process
from rlcore_environments.answers import read_step
from rlcore_environments.calls import Calls
from rlcore_environments.options import ToolOptions
from rlcore_environments.process import RemoteEnvironment, RemoteError, Worker, Workers, isolated_factory
from rlcore_environments.tools import Tools
from rlcore_testing.small import make_gpt2, make_tokenizer

NAME = "isolated_games:Dice"


def processes(batch: object) -> set[int]:
    return {info["pid"] for info in batch.arguments["info"] if "pid" in info}  # type: ignore[attr-defined]


@pytest.mark.slow
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


@pytest.mark.slow
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
    assert re.fullmatch(
        r"episode 2, turn 1: the environment raised ValueError: no such door at tests/isolated_games\.py:\d+",
        batch.failures[2],
    )
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
    with pytest.raises(
        ConfigError,
        match="could not load it: ModuleNotFoundError: No module named 'no_such_games'; searched: the modules ",
    ):
        play("no_such_games:Dice", ["a"], isolate="process")
    with pytest.raises(ConfigError, match=r"could not load it: AttributeError.*'__main__'.*: put it into a module"):
        play("__main__:Game", ["a"], isolate="process")
    with pytest.raises(ConfigError, match=r"python = '/no/python': has no effect, .*; set isolate to `process`"):
        play(NAME, ["a"], python="/no/python")
    with pytest.raises(ConfigError, match=r"data\.episodes\.python = '/no/python': cannot be started: No such file"):
        play(NAME, ["a"], isolate="process", python="/no/python")


@pytest.mark.parametrize("isolate", ["none", "process", "episode"])
def test_an_environment_without_a_method_is_refused_before_the_run(isolate: str) -> None:
    player = make_player("isolated_games:Unfinished", data={"episodes": {"isolate": isolate}})
    with pytest.raises(
        DataError, match=r"prompts\[0\]: environment 'Unfinished'.* Unfinished, which has no method step"
    ):
        read_prompts(player, make_policy(chat=True), ["a"])
    player.close()


def test_the_place_of_an_error_in_reset_is_named_in_any_process() -> None:
    for isolate in ("none", "process"):
        player = make_player("isolated_games:Broken", data={"episodes": {"isolate": isolate}})
        with pytest.raises(DataError, match=r"reset raised ValueError: no dice at tests/isolated_games\.py:\d+"):
            read_prompts(player, make_policy(chat=True), ["a"])
        player.close()


def test_an_error_in_reset_is_reported_before_the_run() -> None:
    player = make_player("isolated_games:max_calls.append", data={"episodes": {"isolate": "process"}})
    with pytest.raises(DataError, match=r"prompts\[0\]: environment 'append': reset raised TypeError"):
        read_prompts(player, make_policy(chat=True), ["a"])
    player.close()


@pytest.mark.parametrize("how", ["stop", "block"])
def test_a_process_that_hangs_is_replaced(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "PING_S", 0.3)
    factory = isolated_factory("isolated_games:Stuck", None, one_each=False, timeout_s=5.0)
    try:
        first = factory.make()
        first.reset({}, seed=0)
        with pytest.raises(process.CallTooLate, match=r"timeout_s = 5 seconds"):
            first.step(Turn(how, 0))
        second = factory.make()
        assert second.reset({}, seed=0) == "go"
        assert read_step(second.step(Turn("a", 1))).done
    finally:
        factory.shutdown()  # type: ignore[misc]


def test_a_coroutine_that_exits_fails_its_own_episode_alone() -> None:
    factory = isolated_factory("isolated_games:Dice", None, one_each=False)
    try:
        one, other = factory.make(), factory.make()
        one.reset({}, seed=0), other.reset({}, seed=0)
        with pytest.raises(RemoteError, match="RuntimeError: it raised SystemExit: 4"):
            one.step(Turn("exit", 0))
        assert other.step(Turn("a", 0))["messages"] == "on"  # type: ignore[index]
    finally:
        factory.shutdown()  # type: ignore[misc]


def test_a_process_whose_environment_does_not_close_is_ended() -> None:
    workers = Workers({"reference": "isolated_games:Stuck"}, sys.executable, 5.0, one_each=True)
    environment = RemoteEnvironment(workers)
    environment.reset({}, seed=0)
    environment.step(Turn("blocks", 0))
    with pytest.raises(process.CallTooLate):
        environment.close()
    assert not environment._worker.is_alive


def test_a_process_that_never_loads_its_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "START_S", 0.5)
    with pytest.raises(ConfigError, match=r"did not load it within 0\.5 seconds"):
        Worker({"reference": "endless_import:nothing"}, sys.executable)


def test_values_are_the_same_in_a_process() -> None:
    row = {"count": np.int64(3), "share": np.float32(0.5), "flag": np.bool_(True), "cells": np.array([[1, 2]])}
    factory = isolated_factory("isolated_games:Pairs", None, one_each=False)
    try:
        there = factory.make()
        assert there.reset({**row, "pair": (1, 2)}, seed=0) == "cells=[[1, 2]] count=3 flag=True pair=[1, 2] share=0.5"
        assert read_step(there.step(Turn("x", 0))) == read_step(Pairs().step(Turn("x", 0)))
    finally:
        factory.shutdown()  # type: ignore[misc]


@pytest.mark.slow  # the process imports rlcore
def test_each_call_of_a_tool_in_a_process_has_the_time_of_a_tool() -> None:
    """Two calls take longer than a call of the environment may; the third takes longer than one of a tool may."""
    tools = Tools(ToolOptions(functions=["isolated_slow:wait"], timeout_s=6.0))
    factory = isolated_factory(tools, None, one_each=False, timeout_s=5.0)
    calls = [{"name": "wait", "arguments": {"seconds": seconds}} for seconds in (3, 3, 900)]
    try:
        environment = factory.make()
        environment.reset({}, seed=0)
        found = Calls(1, 5.0).start(environment.step, Turn("", 0, tool_calls=calls)).result()
        said = [message["content"] for message in read_step(found).messages]
        assert said == ["done", "done", "error: wait did not return within 6 seconds"]
    finally:
        factory.shutdown()  # type: ignore[misc]


def train(folder: Path, **run: object) -> object:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return rlcore.train(
        make_gpt2(), trainer={"name": "reinforce", "rollouts": 4}, environment="resumed_games:Coin", prompts=["a"] * 4,
        gen={"max_new_tokens": 2}, tokenizer=tokenizer, loggers=[], eval={"at_end": False},
        data={"episodes": {"isolate": "process"}},
        run={"root": str(folder), "name": "run", "report": False, **run},
    )  # fmt: skip


def test_a_run_does_not_go_on_with_other_code_of_its_isolated_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    code = (
        "def prize():\n    return 1.0\n\n\nclass Coin:\n    def reset(self, row, *, seed):\n        return 'go'\n\n"
        "    def step(self, turn):\n        return prize()\n"
    )
    file = tmp_path / "resumed_games.py"
    file.write_text(code)
    train(tmp_path / "runs", steps=1)
    file.write_text("# a comment\n" + code)
    train(tmp_path / "runs", steps=2, resume="auto")
    file.write_text(code.replace("1.0", "2.0"))  # in a function that the class calls
    with pytest.raises(ConfigError, match=r"data\.environment was .*Coin, module source \w{16}.*, is .*Coin, module"):
        train(tmp_path / "runs", steps=3, resume="auto")
    assert "resumed_games" not in sys.modules  # only the process imports it


@pytest.mark.parametrize("isolate", ["none", "process"])
def test_the_keys_of_an_info_are_texts_wherever_the_environment_is(isolate: str) -> None:
    batch = play("isolated_games:Keys" if isolate == "process" else Keys, ["a"], isolate=isolate)
    assert batch.failures == [""]
    own = {name: values for name, values in batch.numbers.items() if name.startswith("environment/")}
    assert own == {"environment/1": [2.0], "environment/(1, 2)": [3.0], "environment/None": [4.0]}
    assert list(batch.arguments["info"][0]) == ["1", "(1, 2)", "None", "at", "end"]


@pytest.mark.parametrize("isolate", ["process", "episode"])
def test_an_environment_that_reads_its_standard_input_reads_nothing(isolate: str) -> None:
    batch = play("isolated_games:Asking", ["a", "b"], ["c", "d"], isolate=isolate)
    assert batch.failures == ["", ""]
    assert [info["found"] for info in batch.arguments["info"]] == [["", "", ""]] * 2


def test_the_start_of_a_process_is_no_time_of_a_call() -> None:
    """The import takes 3 s, and a call may take 2; both episodes of the second case wait for one process."""
    batch = play("slow_to_import:SlowToImport", ["a", "b"], isolate="episode", timeout_s=2.0)
    assert batch.failures == [""]
    calls = Calls(2, 2.0)
    workers = Workers({"reference": "slow_to_import:SlowToImport"}, sys.executable, 2.0, one_each=False)
    try:
        pending = [calls.start(lambda: RemoteEnvironment(workers).reset({}, seed=0)) for _ in range(2)]
        assert [call.result() for call in pending] == ["go", "go"]
    finally:
        workers.close()
