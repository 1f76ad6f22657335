"""Tests of the launches that are refused because they would not do what they say."""

from __future__ import annotations

import pytest

from rlcore.errors import ConfigError, RanksError
from rlcore.ranks.environment import check_processes, environment_world

LAUNCHES = {
    "FSDP": ({"ACCELERATE_USE_FSDP": "true", "WORLD_SIZE": "2"}, "shard the model by FSDP"),
    "DeepSpeed": ({"ACCELERATE_USE_DEEPSPEED": "True"}, "shard the model by DeepSpeed"),
    "one process": ({"MASTER_ADDR": "127.0.0.1", "ACCELERATE_MIXED_PRECISION": "no"}, "started only this one"),
}


@pytest.mark.parametrize(("variables", "reason"), LAUNCHES.values(), ids=LAUNCHES)
def test_launches_that_would_train_otherwise_than_they_say_are_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], reason: str
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RanksError, match=reason) as caught:
        environment_world()
    assert "torchrun --nproc_per_node N" in str(caught.value)


def test_a_launch_that_shards_nothing_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ACCELERATE_USE_FSDP": "false", "MASTER_ADDR": "a", "WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    assert environment_world() == 3


def test_a_program_is_refused_processes_that_nothing_started() -> None:
    check_processes(1, 4)
    check_processes(4, 4)
    with pytest.raises(ConfigError, match="torchrun --nproc_per_node 2"):
        check_processes(2, 1)
    with pytest.raises(ConfigError, match="WORLD_SIZE = 4"):
        check_processes(2, 4)
