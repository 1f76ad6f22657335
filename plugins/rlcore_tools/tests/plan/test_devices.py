"""Tests of the command line's devices and rates, and of what a plan for them prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest
from planning_making import folders, imitation

from rlcore.cli import main
from rlcore.config import merge
from rlcore.errors import ConfigError, ModelError, RLCoreError
from rlcore_tools.plan.cluster import cluster_as_json, plan_cluster
from rlcore_tools.plan.estimate import estimate
from rlcore_tools.plan.model_sizes import Weight
from rlcore_tools.plan.planned_run import learned
from rlcore_tools.plan.sizes import Placement, Rates, every_layout, parse_devices, parse_rate, parse_share
from rlcore_tools.plan.wire import gathered

__all__ = ["folders"]  # a fixture


@pytest.fixture
def run(folders: dict[str, Path], tmp_path: Path) -> Path:
    values = merge(imitation(folders["llama"], "sft", micro_batch_size=2), {"run": {"shard": "fsdp"}})
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps(values))  # JSON is also YAML
    return file


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--devices", "8"], ("--devices '8': must be the number of devices of one machine, at least 1, and the memory "
         "of each, such as 8x80GB")),
        (["--devices", "0x80GB"], ("--devices '0x80GB': must be the number of devices of one machine, at least 1, and "
         "the memory of each, such as 8x80GB")),
        (["--devices", "8xmuch"], "--devices '8xmuch': must be an amount of memory, such as 24GB, 80GiB or 512MB"),
        (["--devices", "8x80"], "--devices '8x80': has 80 bytes for each device: add a unit, such as 80GB"),
        (["--peak-flops", "312T"], "--peak-flops 312T: needs --devices, such as --devices 8x80GB"),
        (["--nodes", "2"], "--nodes 2: needs --devices, such as --devices 8x80GB"),
        (["--devices", "8x80GB", "--world", "8"], ("--world 8: cannot be combined with --devices 8x80GB, which names "
         "the number of devices and their memory: leave out --world")),
        (["--devices", "8x80GB", "--device-memory", "80GB"], ("--device-memory 80GB: cannot be combined with --devices "
         "8x80GB, which names the number of devices and their memory: leave out --device-memory")),
        (["--peak-flops", "fast"], ("--peak-flops 'fast': must be a finite number above 0 for each "
         "second, such as 989T or 45GB")),
        (["--inter-bandwidth", "1e400"], ("--inter-bandwidth '1e400': must be a finite number above 0 for each "
         "second, such as 989T or 45GB")),
        (["--device-memory", "9" * 400], (f"--device-memory '{'9' * 400}': must be an amount of memory, such as "
         "24GB, 80GiB or 512MB")),
        (["--inter-bandwidth", "0"], ("--inter-bandwidth '0': must be a finite number above 0 for each "
         "second, such as 989T or 45GB")),
        (["--utilisation", "40"], "--utilisation '40': must be a share above 0 and up to 1, such as 0.4"),
        (["--overlap", "-1"], "--overlap '-1': must be a share from 0 to 1, such as 0.4"),
    ],
)  # fmt: skip
def test_devices_and_rates_that_cannot_be_read_are_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"{words[0]}={words[1]}", *words[2:]]  # a value may begin with a minus
    assert main(["plan", "nothing.yaml", *words]) == 1
    assert capsys.readouterr().err == f"ConfigError: {said}\n"


def test_no_machines_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "nothing.yaml", "--devices", "8x80GB", "--nodes", "0"])
    assert "argument --nodes: '0': must be a whole number, at least 1" in capsys.readouterr().err


def test_a_strategy_that_is_not_registered_is_named_with_those_that_are(folders: dict[str, Path]) -> None:
    values = merge(imitation(folders["llama"], "sft"), {"run": {"shard": "fdsp"}})
    with pytest.raises(RLCoreError, match=r"no sharding is called 'fdsp'\. Did you mean 'fsdp'"):
        estimate(values, "test", world=2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shard": "zero2"}, "run.shard_within = 'node': run.shard = 'zero2' divides among all processes"),
        ({"offload": True}, "run.offload: needs run.shard=fsdp"),
        ({"shard": "fsdp", "mixed_precision": "fp16"}, "run.mixed_precision = 'fp16' is not supported: use bf16"),
    ],
)
def test_options_that_a_run_refuses_are_refused_by_its_plan(
    options: dict[str, Any], said: str, folders: dict[str, Path]
) -> None:
    values = merge(imitation(folders["llama"], "sft"), {"run": options})
    with pytest.raises(ConfigError) as caught:
        estimate(values, "test", world=4, nodes=2)
    assert said in str(caught.value)


def test_texts_of_devices_and_rates_are_numbers() -> None:
    assert parse_devices("8x80GB") == (8, 80 * 10**9)
    assert parse_devices(" 4 X 40GiB ") == (4, 40 * 2**30)
    assert [parse_rate("--peak-flops", text) for text in ("989T", "3.35e12", "45GB/s", "312 TFLOPS")] == [
        989e12, 3.35e12, 45e9, 312e12,
    ]  # fmt: skip
    assert (parse_share("--overlap", "0"), parse_share("--utilisation", "1")) == (0, 1)


@pytest.mark.slow
def test_without_devices_a_plan_is_for_the_processes_of_the_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, count in ((["run.processes=4"], 4), (["run.processes=4", "--world", "2"], 2), ([], 1)):
        assert main(["plan", str(run), *words]) == 0
        assert capsys.readouterr().out.startswith(f"memory of each of {count} devices (cpu), run.shard=fsdp")
    assert main(["plan", str(run), "run.processes=0"]) == 1
    assert "run.processes = 0: " in capsys.readouterr().err


def test_a_rank_keeps_whole_rows() -> None:
    weight = Weight(rows=10, numel=40, itemsize=4, trains=True, gathered=4)
    assert [weight.share(devices) for devices in (1, 2, 3, 4, 16)] == [160, 80, 64, 48, 16]


def test_a_gather_sends_a_part_to_each_other_device_and_machine() -> None:
    layout = Placement("fsdp", nodes=2, per_node=4, within_node=False)
    assert gathered(800.0, layout, 4) == (600.0, 0.0)
    assert gathered(800.0, layout, 8) == (600.0, 100.0)
    assert gathered(800.0, layout, 1) == (0.0, 0.0)


def test_each_strategy_divides_what_it_says(folders: dict[str, Path]) -> None:
    found = estimate(imitation(folders["llama"], "sft"), "test", world=4)
    trained = found.measured.held["parameters that train"]
    moments = found.measured.held["optimizer"]

    def held(strategy: str) -> tuple[float, float]:
        parts = found.under(Placement(strategy, 1, 4)).held
        return parts["parameters that train"] / trained, parts["optimizer"] / moments

    assert held("none") == (1, 1)
    assert held("zero2") == pytest.approx((1, 0.25), rel=0.01)
    assert held("fsdp") == pytest.approx((0.25, 0.25), rel=0.01)
    assert held("zero3") == pytest.approx((0.25, 0.25), rel=0.01)


def test_a_plan_for_devices_lists_strategies_traffic_time_and_efficiency(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(run), "--nodes", "2", "--devices", "4x1GB", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    plan = found["cluster"]
    assert (found["world"], found["strategy"], found["limit"], found["baseline"]) == (8, "fsdp", 10**9, 0)
    options = [each["options"] for each in plan["strategies"]]
    assert options == [
        "run.shard=none", "run.shard=fsdp run.shard_within=node", "run.shard=fsdp run.shard_within=world",
        "run.shard=zero2 run.shard_within=world", "run.shard=zero3 run.shard_within=world",
    ]  # fmt: skip
    assert all(each["fits"] and {"start", "update", "checkpoint"} <= set(each["phases"]) for each in plan["strategies"])
    assert [each["devices"] for each in plan["efficiency"]] == [4, 8, 16, 32, 64, 128, 256, 512, 1024]
    shares = [row["shares"]["run.shard=none"] for row in plan["efficiency"]]
    assert shares == sorted(shares, reverse=True)
    assert plan["rates"]["peak_flops"] == 989e12
    assert set(plan["seconds"]) == {"sampling", "scoring", "update", "exchange"}


def test_a_plan_for_other_devices_than_the_processes_of_the_run_says_so(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note = "note: run.processes = 2 starts 2 processes; the plan is for 1 device"
    for words, is_said in ((["run.processes=2"], True), ([], False)):
        assert main(["plan", str(run), "--devices", "1x1GB", *words]) == 0
        out = capsys.readouterr().out
        assert "1 machine of 1 device with 1.00 GB each" in out
        assert (note in out) is is_said


def test_a_strategy_that_fits_has_room_for_the_interpreter_too(folders: dict[str, Path]) -> None:
    found = attrs.evolve(estimate(imitation(folders["llama"], "sft"), "test", world=2), baseline=10**8)
    limit = found.measured.worst.taken + 10**8 - 1
    for devices, is_enough in ((limit, False), (limit + 1, True)):
        strategies = cluster_as_json(plan_cluster(found, devices, Rates()))["strategies"]
        assert {each["options"]: each["fits"] for each in strategies}["run.shard=none"] is is_enough


@pytest.mark.slow
def test_a_run_that_does_not_fit_is_told_to_divide_its_model(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps(imitation(folders["llama"], "sft", micro_batch_size=1)))
    assert main(["plan", str(file), "--devices", "8x2.5MB"]) == 0
    said = capsys.readouterr().out
    assert "run.shard=none" in said.splitlines()[0]
    assert "(fits); the same result, slower" in next(
        line for line in said.splitlines() if line.startswith("  run.shard=fsdp ")
    )


def test_a_model_that_cannot_be_divided_is_refused_with_the_reason(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = merge(imitation(folders["llama"], "sft"), {"run": {"shard": "fsdp"}})
    from rlcore_transformers.models.learner import ModelLearner

    def refuse(self: Any, strategy: str) -> None:
        raise ModelError("it is quantized")

    monkeypatch.setattr(ModelLearner, "check_divisible", refuse)
    with pytest.raises(ModelError, match=r"run\.shard = 'fsdp': the model cannot be divided: it is quantized"):
        estimate(values, "test", world=2)


def test_samples_that_are_not_on_this_machine_fill_a_batch(folders: dict[str, Path]) -> None:
    values = merge(imitation(folders["llama"], "sft"), {"data": {"samples": "org/samples", "max_sample_tokens": 16}})
    found = estimate(values, "test", world=4)
    assert learned(found.subject).mask.sum(1).tolist() == [16] * (16 // 4)


def test_deepspeed_is_refused_for_weights_of_16_bits_that_train(folders: dict[str, Path]) -> None:
    options = {"model": {"dtype": "bfloat16"}, "run": {"shard": "zero2"}}
    with pytest.raises(ModelError, match=r"run\.shard = 'zero2': weights of 16 bits train, which is not supported"):
        estimate(merge(imitation(folders["llama"], "sft"), options), "test", world=2)
    assert [each.strategy for each in every_layout(1, 8, is_float32=False)] == ["none", "fsdp"]
