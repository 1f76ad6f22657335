"""Tests of what `accelerate launch` was told to shard: options of the run say the same, or it is refused."""

from __future__ import annotations

import os

import pytest

from rlcore.config import structure
from rlcore.errors import RanksError
from rlcore.ranks import environment_world
from rlcore.settings import TrainConfig
from rlcore_shard.local_processes import accept_launch, accept_sharding

ONE_MACHINE = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
MACHINES = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
FSDP = {"ACCELERATE_USE_FSDP": "true"}
DEEPSPEED = {"ACCELERATE_USE_DEEPSPEED": "true"}
FSDP2 = FSDP | {"FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": "true"}
COUNTERPARTS = {
    "FSDP": (FSDP | ONE_MACHINE, "run.shard=fsdp"),
    "between machines": (FSDP2 | MACHINES, "run.shard=fsdp run.shard_within=world"),
    "within machines": (
        FSDP | MACHINES | {"FSDP_SHARDING_STRATEGY": "HYBRID_SHARD"},
        "run.shard=fsdp run.shard_within=node",
    ),
    "DeepSpeed": (
        DEEPSPEED | MACHINES | {"ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"},
        "run.shard=zero3 run.shard_within=world",
    ),
    "DeepSpeed's offload": (
        DEEPSPEED
        | ONE_MACHINE
        | {"ACCELERATE_DEEPSPEED_ZERO_STAGE": "2", "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "cpu"},
        "run.shard=zero2 run.offload=true",
    ),
    "offload": (FSDP | ONE_MACHINE | {"FSDP_OFFLOAD_PARAMS": "true"}, "run.shard=fsdp run.offload=true"),
    "checkpointing": (
        FSDP2 | ONE_MACHINE | {"FSDP_ACTIVATION_CHECKPOINTING": "true"},
        "run.shard=fsdp model.gradient_checkpointing=true",
    ),
}


def test_a_cluster_in_a_process_of_another_launcher_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun has started the processes; that the cluster is left unused would go unnoticed."""
    config = structure(TrainConfig, {"run": {"cluster": {"name": "ray"}}}, where="x.yaml")
    monkeypatch.delenv("RLCORE_STARTED", raising=False)
    launched(monkeypatch, ONE_MACHINE)
    with pytest.raises(RanksError) as refused:
        accept_launch(config)
    assert str(refused.value) == (
        "run.cluster = {'name': 'ray'}: another launcher, such as torchrun, has started this process (WORLD_SIZE = 2): "
        "leave run.cluster out, or start the run without that launcher, by rlcore train, which starts run.processes "
        "processes on the cluster"
    )
    monkeypatch.setenv("RLCORE_STARTED", "1")  # as for ranks on the cluster
    accept_launch(config)
    monkeypatch.delenv("RLCORE_STARTED")
    monkeypatch.setenv("WORLD_SIZE", "1")  # one process has no others that would be left out
    accept_launch(config)
    monkeypatch.delenv("WORLD_SIZE")
    accept_launch(config)


def launched(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(("variables", "line"), COUNTERPARTS.values(), ids=COUNTERPARTS)
def test_a_launch_that_shards_is_accepted_with_the_options_that_its_refusal_names(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], line: str
) -> None:
    launched(monkeypatch, variables)
    options = dict(assignment.split("=") for assignment in line.split())
    for missing in ("all", *options):
        given = {} if missing == "all" else {name: value for name, value in options.items() if name != missing}
        with pytest.raises(RanksError) as caught:
            accept_sharding(settings(given, other_within="world" if "=node" in line else "node"))
        assert f": set {line}, or unset {next(iter(variables))}" in str(caught.value)
    accept_sharding(settings(options))
    assert environment_world() == int(variables["WORLD_SIZE"])
    assert next(iter(variables)) not in os.environ


def settings(options: dict[str, str], *, other_within: str = "node") -> TrainConfig:
    """Return a configuration with options by dotted name; `run.shard_within` unless it is among them."""
    values: dict[str, dict[str, object]] = {"run": {"shard_within": other_within}, "model": {}}
    for name, text in options.items():
        section, option = name.split(".")
        values[section][option] = {"true": True}.get(text, text)
    return structure(TrainConfig, values)
