"""Tests of the launches that are refused because they would not do what they say."""

from __future__ import annotations

import pytest

from rlcore.errors import ConfigError, RanksError
from rlcore.ranks import check_processes, environment_world

LAUNCHES = {
    "Megatron-LM": ({"ACCELERATE_USE_MEGATRON_LM": "true"}, "by Megatron-LM in a way for which"),
    "DeepSpeed": ({"ACCELERATE_USE_DEEPSPEED": "True", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "1"}, "by DeepSpeed in"),
    "one process": ({"MASTER_ADDR": "127.0.0.1", "ACCELERATE_MIXED_PRECISION": "no"}, "started only this one"),
}


def launched(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(("variables", "reason"), LAUNCHES.values(), ids=LAUNCHES)
def test_launches_whose_settings_would_have_no_effect_are_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], reason: str
) -> None:
    launched(monkeypatch, variables)
    with pytest.raises(RanksError, match=reason) as caught:
        environment_world()
    assert "torchrun --nproc_per_node N" in str(caught.value)


def test_a_launch_that_shards_nothing_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ACCELERATE_USE_FSDP": "false", "MASTER_ADDR": "a", "WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    assert environment_world() == 3


def test_a_number_of_processes_that_were_not_started_is_refused() -> None:
    check_processes(1, 4)
    check_processes(4, 4)
    with pytest.raises(ConfigError, match="torchrun --nproc_per_node 2"):
        check_processes(2, 1)
    with pytest.raises(ConfigError, match="WORLD_SIZE = 4"):
        check_processes(2, 4)


def test_a_program_that_no_cluster_has_started_does_not_take_itself_for_a_rank_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for world in ("", "1"):  # some containers set it, and torchrun for one process
        monkeypatch.setenv("WORLD_SIZE", world) if world else monkeypatch.delenv("WORLD_SIZE", raising=False)
        with pytest.raises(ConfigError, match=r"run\.cluster = 'ray': rlcore\.train runs in this process alone"):
            check_processes(1, 1, "ray")
    monkeypatch.setenv("RLCORE_STARTED", "1")
    check_processes(1, 1, "ray")
