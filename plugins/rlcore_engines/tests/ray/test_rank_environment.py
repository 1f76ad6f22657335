"""Tests of the ranks of processes on several machines, and of their environment variables, worked by hand."""

from __future__ import annotations

from rlcore_engines.ray.agent import Place, environments, order

PLACES = [
    Place("b", "10.0.0.2", 7000, ("1",)), Place("a", "10.0.0.1", 6000, ("0",)), Place("b", "10.0.0.2", 7001, ("0",)),
]  # fmt: skip


def test_ranks_of_one_machine_follow_one_another() -> None:
    assert order(PLACES) == [0, 2, 1]
    assert order(PLACES[:1] * 2 + PLACES[1:]) == [0, 1, 3, 2]


def test_variables_are_those_of_torchrun() -> None:
    found = environments([PLACES[index] for index in order(PLACES)], run_id="x", attempt=2, restarts=3)
    own = ["RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "CUDA_VISIBLE_DEVICES"]
    assert [[variables[name] for name in own] for variables in found] == [
        ["0", "0", "2", "0", "1,0"], ["1", "1", "2", "0", "1,0"], ["2", "0", "1", "1", "0"],
    ]  # fmt: skip
    common = {name: value for name, value in found[2].items() if name not in own}
    assert common == {
        "WORLD_SIZE": "3", "ROLE_WORLD_SIZE": "3", "GROUP_WORLD_SIZE": "2", "ROLE_RANK": "2", "ROLE_NAME": "default",
        "MASTER_ADDR": "10.0.0.2", "MASTER_PORT": "7000", "TORCHELASTIC_RUN_ID": "x",
        "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_USE_AGENT_STORE": "False",
        "RLCORE_STARTED": "1",
    }  # fmt: skip


def test_processes_without_gpus_see_what_the_machine_shows() -> None:
    assert "CUDA_VISIBLE_DEVICES" not in environments([Place("a", "h", 1)], run_id="x", attempt=0, restarts=0)[0]
