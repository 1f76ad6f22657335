"""Tests of plans with a sampler elsewhere: what its options declare, and what that means for ranks and devices."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from planning_making import LLAMA, folders, ppo

from rlcore.cli import main
from rlcore.config import merge
from rlcore.errors import ConfigError, PluginError
from rlcore_engines.ray.config import RayConfig
from rlcore_engines.vllm.config import OpenAIConfig, VLLMConfig
from rlcore_tools.plan.cluster import plan_cluster, write_cluster
from rlcore_tools.plan.estimate import Estimate, estimate
from rlcore_tools.plan.serving import Serving, serving_of
from rlcore_tools.plan.sizes import Rates
from rlcore_tools.plan.wire import RENEWING, sampling_time

__all__ = ["folders"]  # a fixture

GB = 10**9
BLOCK = 4 * 64 * (64 + 32 + 32 + 64 + 3 * 176) + 4 * 2 * 64
"""Bytes of a block of the small Llama: queries, keys, values, outputs, the feed-forward layer and two norms."""
TABLE = 4 * 512 * 64
MODEL = 2 * BLOCK + 2 * TABLE + 4 * 64
SERVER = {"name": "vllm", "url": "http://127.0.0.1:9"}
OWN: dict[str, Any] = {"name": "vllm", "python": "/opt/vllm/bin/python"}


def planned(folders: dict[str, Path], sampler: dict[str, Any], world: int = 2, **run: Any) -> Estimate:
    values = merge(ppo(folders["llama"]), {"sampler": sampler, "run": run})
    return estimate(values, "test", world=world, device="cuda", memory=GB)


def parts(found: Estimate, name: str) -> dict[str, int]:
    return next(each.parts for each in found.measured.phases if each.name == name)


@pytest.mark.slow
def test_a_rank_has_no_cache_where_another_program_samples(folders: dict[str, Path]) -> None:
    assert "key-value cache" in parts(planned(folders, {"name": "default"}), "sampling")
    for sampler in (SERVER, {"name": "ray"}, {"name": "openai", "url": "http://127.0.0.1:9/v1", "model": "other"}):
        assert "key-value cache" not in parts(planned(folders, sampler), "sampling")


@pytest.mark.slow
def test_an_engine_has_the_weights_and_the_cache_of_its_rows(folders: dict[str, Path]) -> None:
    engines = planned(folders, {**OWN, "dtype": "bfloat16"}).raw.engines
    assert engines is not None
    width = LLAMA["hidden_size"] // LLAMA["num_attention_heads"] * LLAMA["num_key_value_heads"]
    assert engines.weights == MODEL // 2
    assert engines.row == 2 * 2 * 2 * width * (8 + 56)  # keys and values, 2 layers, 2 bytes, prompt and new tokens
    assert (engines.rows, engines.at_once, engines.sent) == (16, 16, MODEL)
    assert engines.needed == engines.weights + 16 * engines.row


@pytest.mark.slow
def test_a_server_that_sleeps_is_on_the_devices_of_ranks_while_it_samples(folders: dict[str, Path]) -> None:
    args = ["--gpu-memory-utilization", "0.4", "--tensor-parallel-size=2"]
    for options, in_all in (({"sleep": True}, False), ({}, True)):
        found = planned(folders, {**OWN, "args": args, **options}, shard="fsdp")
        name, held = "a server on this device", found.measured.held
        assert held[name] == (int(0.4 * GB) if in_all else 0)
        assert parts(found, "sampling").get(name, 0) == (0 if in_all else int(0.4 * GB))
    assert planned(folders, {**OWN, "env": {"CUDA_VISIBLE_DEVICES": "2"}}).measured.held[name] == 0
    assert planned(folders, OWN).measured.held[name] == int(0.9 * GB)  # as vLLM does of itself


@pytest.mark.slow
def test_weights_that_are_sent_from_memory_are_collected_on_the_device(folders: dict[str, Path]) -> None:
    found = planned(folders, {**SERVER, "transfer": "broadcast", "check_rows": 0})
    assert parts(found, "sampling") == {"weights that process 0 collects": MODEL}
    files = planned(folders, {**SERVER, "check_rows": 0})
    assert parts(files, "sampling") == {}
    divided = planned(folders, {**SERVER, "check_rows": 0}, shard="fsdp")
    assert parts(divided, "sampling") == {"one tensor at a time, which is gathered": 4 * TABLE}


@pytest.mark.parametrize(("name", "copies"), [("default", 2), ("ray", 2), ("vllm", 0)])
def test_rounds_ahead_have_copies_of_the_weights_unless_the_sampler_has_submit(
    name: str, copies: int, folders: dict[str, Path]
) -> None:
    sampler = SERVER if name == "vllm" else {"name": name}
    found = planned(folders, sampler, asynchronous=2)
    line = "copies of the weights that sample ahead"
    assert found.measured.held[line] == copies * found.raw.sizes.trained
    assert parts(found, "sampling").get(line, 0) == (found.raw.sizes.trained if copies else 0)
    meanwhile = parts(found, "update").get("sampling, while the policy learns", 0)
    assert meanwhile == (max(each.peak for each in found.raw.draws.phases) if name == "default" else 0)
    with pytest.raises(ConfigError, match=r"run.asynchronous = 2: needs the whole model on every process"):
        planned(folders, sampler, asynchronous=2, shard="fsdp")


@pytest.mark.slow
def test_weights_reach_one_server_after_another_and_sampling_hides_behind_learning(folders: dict[str, Path]) -> None:
    rates = Rates(inter_bandwidth=1e6)
    two = planned(folders, {"name": "vllm", "url": ["http://127.0.0.1:8", "http://127.0.0.1:9"]})
    plan = plan_cluster(two, GB, rates)
    seconds = plan.time(two.layout).seconds
    assert seconds[RENEWING] == pytest.approx(3 * MODEL / 1e6)  # written once, read twice
    assert seconds["sampling"] == sampling_time(two.raw, plan.matrices, plan.work, rates) > 0
    ahead = planned(folders, SERVER, asynchronous=1)
    plan = plan_cluster(ahead, GB, rates)
    seconds = plan.time(ahead.layout).seconds
    learning = seconds["scoring"] + seconds["update"] + seconds["exchange"]
    whole = sampling_time(ahead.raw, plan.matrices, plan.work, rates)
    assert seconds["sampling"] == pytest.approx(max(0.0, whole - learning))
    assert [each.strategy for each, _ in plan.options] == ["none"]


@pytest.mark.slow
def test_a_server_without_room_lacks_bytes_and_actors_on_cpus_are_not_timed(folders: dict[str, Path]) -> None:
    values = merge(ppo(folders["llama"]), {"sampler": {**OWN, "args": ["--gpu-memory-utilization", "0.5"]}})
    found = estimate(values, "test", world=1, device="cuda", memory=MODEL)
    engines = found.raw.engines
    assert engines is not None
    assert engines.missing == MODEL + engines.row - round(MODEL / 2)
    actors = planned(folders, {"name": "ray"})
    plan = plan_cluster(actors, GB, Rates())
    assert plan.time(actors.layout).seconds["sampling"] == 0
    assert "  without sampling, whose devices are not known or CPUs" in write_cluster(plan)


def test_options_declare_where_their_sampler_samples() -> None:
    own = VLLMConfig(
        python="p", args=("-tp", "2", "--pipeline-parallel-size=2"), env={"CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    )
    found = Serving(**own.serving())
    assert (found.devices, found.numbers, found.engines, found.reads) == (4, (4, 5, 6, 7), 1, "stream")
    assert [found.processes_of(devices) for devices in (8, 4)] == [4, 4]
    sleeping = Serving(**VLLMConfig(python="p", sleep=True, env={"CUDA_VISIBLE_DEVICES": "6,7"}).serving())
    assert (sleeping.processes_of(8), sleeping.shared(8), sleeping.shared(6)) == (8, True, False)
    assert Serving(**OpenAIConfig(url="http://a/v1", model="m").serving()) == Serving(reads="nothing")
    actors = Serving(**RayConfig(num_actors=4, num_gpus=0.5).serving())
    assert (actors.engines, actors.devices, actors.reads, actors.sends) == (4, 1, "whole", "trained")
    engine = RayConfig(engine={"name": "vllm", "python": "p", "dtype": "bfloat16"})
    assert (Serving(**engine.serving()).dtype, Serving(**engine.serving()).host_copy) == ("bfloat16", True)


class Reading:
    def renew_weights(self, policy: Any, prompts: Any) -> None: ...


@pytest.mark.parametrize(
    ("target", "reads", "said"),
    [(Reading, "stream", "is assumed to read the weights one tensor at a time"), (Any, "", "as by sampler 'default'")],
)
def test_a_sampler_that_declares_nothing_is_assumed_what_a_note_says(target: Any, reads: str, said: str) -> None:
    component = SimpleNamespace(name="acme", target=lambda: target)
    found, notes = serving_of(SimpleNamespace(options=None, component=component))
    assert (found.reads if found else "") == reads
    assert len(notes) == 1
    assert said in notes[0]
    assert "'acme' declares no `serving`" in notes[0]


def test_an_unknown_word_in_a_declaration_is_an_error_that_names_it() -> None:
    with pytest.raises(PluginError, match="reads = 'some' must be 'whole', 'stream' or 'nothing'"):
        Serving(reads="some")


@pytest.mark.slow
def test_processes_are_planned_on_the_devices_that_a_server_of_the_run_leaves(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sampler = {**OWN, "env": {"CUDA_VISIBLE_DEVICES": "3"}}
    values = merge(ppo(folders["llama"]), {"sampler": sampler, "data": {"reward_fn": "operator:length_hint"}})
    (tmp_path / "run.yaml").write_text(json.dumps(values))
    assert main(["plan", str(tmp_path / "run.yaml"), "--devices", "4x1GB"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("memory of each of 3 devices (cuda)")
    assert "one copy of the weights, on 1 device of its own, 25 % of 4; the run's processes have the rest" in out
    assert main(["plan", str(tmp_path / "run.yaml"), "--devices", "4x1GB", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["world"], found["engines"]["sent"], found["engines"]["read"]) == (3, MODEL, MODEL)
