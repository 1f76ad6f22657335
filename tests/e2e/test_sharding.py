"""Tests that a run whose weights are divided among processes equals the run of one process."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from e2e_processes import assert_same, lines, newest_checkpoint, run_ranks
from e2e_stranger import install
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from warm_python import WarmPython

from rlcore.checkpoints.checkpoint import Checkpoints
from rlcore.checkpoints.state import load_state
from rlcore.cli import main
from rlcore.errors import ModelError
from rlcore_testing.small import make_llama
from rlcore_transformers.models.loading import load_model
from rlcore_transformers.models.model_options import CausalLMConfig

CHILD = str(Path(__file__).with_name("e2e_shards.py"))
CLOSE = 1e-6
FSDP = {"shard": "fsdp"}
EVERY = "sft,ilql,ppo,grpo,dpo,reward,climb"
"""Trainers of every kind, the last of which a third party has installed."""


@pytest.fixture
def train_on(warm_python: WarmPython, tmp_path: Path) -> Callable[..., str]:
    """Train runs in `world` processes, and return what they print on stderr.

    train_on(2, "sft,ppo", "two", shard="fsdp") writes two-sft and two-ppo.
    """
    site = os.pathsep.join([str(install(tmp_path / "site")), *filter(None, [os.environ.get("PYTHONPATH")])])

    def train(
        world: int, names: str, run: str, *, steps: int = 3, local: int = 0, killed: str = "", every: int = 0,
        write: str = "safetensors", unset_is_nan: bool = False, **options: object,
    ) -> str:  # fmt: skip
        changes: dict[str, Any] = {"run": {"steps": steps, "rollouts": "all"} | options}
        changes["checkpoint"] = {"every": every, "format": write}
        arguments = [CHILD, names, str(tmp_path), run, json.dumps(changes)]
        further = {"UNSET_IS_NAN": "1"} if unset_is_nan else {}
        done = run_ranks(warm_python, world, arguments, local=local, KILLED=killed, PYTHONPATH=site, **further)
        assert (done.returncode != 0) is bool(killed), done.stderr[-3000:]
        return done.stderr

    return train


def check_same(root: Path, names: str, one: str, other: str) -> None:
    for name in names.split(","):
        runs = [root / f"{run}-{name}" for run in (one, other)]
        assert files_of(runs[0]) == files_of(runs[1]), name
        for file in files_of(runs[0]):
            if file.endswith(".jsonl"):
                rows = [[(row["prompt"], row["output"]) for row in lines(run / file)] for run in runs]
                assert rows[0] == rows[1], f"{name}: {file}"
                continue
            first, second = (load_file(run / file) for run in runs)
            assert first.keys() == second.keys(), f"{name}: {file}"
            worst = max(float((tensor - second[key]).abs().max()) for key, tensor in first.items())
            assert worst <= CLOSE, f"{name}: parameters in {file} differ by {worst:.1e}"


def files_of(run: Path) -> list[str]:
    """Return the files of the trained weights, those of heads and critics included, and of what was sampled."""
    weights = sorted((run / "model").rglob("*.safetensors"))
    assert weights
    sampled = [run / name for name in ("rollouts.jsonl", "completions.jsonl") if (run / name).exists()]
    return [str(file.relative_to(run)) for file in (*weights, *sampled)]


@pytest.mark.slow
def test_fsdp_on_two_ranks_learns_what_one_process_learns(train_on: Callable[..., None], tmp_path: Path) -> None:
    train_on(1, "sft,ppo", "one")
    train_on(2, "sft,ppo", "two", **FSDP)
    check_same(tmp_path, "sft,ppo", "one", "two")


@pytest.mark.slow
@pytest.mark.parametrize(("world", "local"), [(2, 2), (4, 2)])
def test_each_of_two_ranks_of_a_machine_keeps_half_of_the_weights_and_moments(
    train_on: Callable[..., None], tmp_path: Path, world: int, local: int
) -> None:
    train_on(world, "hold", "held", local=local, **FSDP)
    size = sum(weight.numel() for weight in make_llama().parameters())
    for rank in range(world):
        held = json.loads((tmp_path / f"held-{rank}.json").read_text())
        stranger, offload, optimizer = held.pop("refusals")
        assert held == {
            "parts": size // 2,
            "moments": size // 2,
            "moments_read": size,
            "written": True,
            "whole": 0,
            "streamed": size,
        }
        assert "SFTTrainer does not implement rlcore.protocols.Divisible" in stranger
        assert "run.offload: needs run.shard=fsdp" in offload
        assert "Adafactor needs whole weights and gradients" in optimizer


@pytest.mark.slow
def test_files_and_weights_are_written_without_a_whole_model_on_any_rank(
    train_on: Callable[..., None], tmp_path: Path
) -> None:
    train_on(2, "stream", "streamed")
    for name in ("ppo", "lora"):
        weights = load_file(tmp_path / f"{name}-weights.safetensors")
        exported = load_file(tmp_path / f"{name}-export" / "model.safetensors")
        assert weights.keys() == exported.keys() == make_llama().state_dict().keys()
        assert all(torch.equal(weights[each], exported[each]) for each in weights)
        assert len(load_file(tmp_path / name / "heads.safetensors")) == 4
    saved = load_file(tmp_path / "ppo" / "model.safetensors")
    exported = load_file(tmp_path / "ppo-export" / "model.safetensors")
    assert all(torch.equal(saved[each], exported[each]) for each in saved)
    adapter = load_file(tmp_path / "lora" / "adapter_model.safetensors")
    held = [json.loads((tmp_path / name / "held.json").read_text()) for name in ("ppo", "lora")]
    assert held == [0, sum(weight.numel() for weight in adapter.values())]
    moments = load_file(tmp_path / "ppo" / "state")
    assert sum(each.numel() for key, each in moments.items() if "exp_avg_sq" in key) == sum(
        weight.numel() for weight in (*saved.values(), *load_file(tmp_path / "ppo" / "heads.safetensors").values())
    )


@pytest.mark.nightly
def test_every_trainer_and_every_part_of_a_policy_can_be_divided(train_on: Callable[..., None], tmp_path: Path) -> None:
    names = (
        "ilql,dpo,reward,grpo,climb,sft_checkpointing,sft_lora,sft_tied,sft_t5,ppo_t5,"
        "ppo_lora,ppo_trunk,ppo_critic,ppo_branch,ppo_low,grpo_moving"
    )
    train_on(1, names, "one")
    train_on(2, names, "two", **FSDP)
    check_same(tmp_path, names, "one", "two")


@pytest.mark.nightly
def test_every_trainer_on_four_ranks_learns_what_it_learns_in_one_process(
    train_on: Callable[..., None], tmp_path: Path
) -> None:
    train_on(1, EVERY, "one")
    for run in ("none", "fsdp"):
        train_on(4, EVERY, run, shard=run)
        check_same(tmp_path, EVERY, "one", run)


@pytest.mark.nightly
def test_two_machines_and_parts_in_the_memory_of_the_cpu_change_no_result(
    train_on: Callable[..., None], tmp_path: Path
) -> None:
    names = "sft,ppo"
    train_on(1, names, "one")
    train_on(4, names, "machines", local=2, **FSDP)
    train_on(2, names, "offloaded", offload=True, **FSDP)
    for run in ("machines", "offloaded"):
        check_same(tmp_path, names, "one", run)


@pytest.mark.nightly
def test_bf16_rounds_the_same_whether_weights_are_divided_or_not(train_on: Callable[..., None], tmp_path: Path) -> None:
    """Another number of ranks adds other rounded gradients, so the reference has as many ranks."""
    train_on(2, "sft,ppo", "whole", mixed_precision="bf16")
    train_on(2, "sft,ppo", "divided", mixed_precision="bf16", **FSDP)
    check_same(tmp_path, "sft,ppo", "whole", "divided")


@pytest.mark.nightly
def test_three_ranks_train_on_fewer_rows_than_ranks_without_hanging(
    train_on: Callable[..., None], tmp_path: Path
) -> None:
    names = "few_ppo,few_grpo,few_dpo,few_reward"
    train_on(1, names, "one", steps=2)
    for run in ("none", "fsdp"):
        train_on(3, names, run, steps=2, shard=run)
        check_same(tmp_path, names, "one", run)


@pytest.mark.nightly
def test_a_run_resumed_with_another_strategy_and_number_of_ranks_equals_an_uninterrupted_one(
    train_on: Callable[..., None], tmp_path: Path
) -> None:
    names = "sft,ppo,grpo_moving"
    train_on(1, names, "straight", steps=10)
    for world, steps, shard in ((2, 2, "fsdp"), (1, 4, "none"), (3, 6, "fsdp"), (2, 8, "none"), (2, 10, "fsdp")):
        train_on(world, names, "changing", steps=steps, shard=shard, resume="auto")
        steps_made = [newest_checkpoint(tmp_path / f"changing-{name}").name for name in names.split(",")]
        assert steps_made == [f"{steps:08}"] * 3
    check_same(tmp_path, names, "straight", "changing")


DCP = {"shard": "fsdp", "write": "dcp"}


@pytest.mark.nightly
def test_a_run_resumes_from_what_other_numbers_of_ranks_wrote_in_parallel(
    train_on: Callable[..., None], tmp_path: Path
) -> None:
    names = "sft,ppo,sft_lora"
    train_on(1, names, "straight", steps=8)
    for world, steps, options in ((2, 2, DCP), (2, 4, DCP), (4, 6, DCP), (1, 8, {"shard": "none"})):
        train_on(world, names, "changing", steps=steps, resume="auto", **options)
        for name in names.split(","):
            newest = newest_checkpoint(tmp_path / f"changing-{name}")
            assert newest.name == f"{steps:08}"
            written = [len(list((newest / folder).glob("*"))) for folder in ("model/model.dcp", "trainer.dcp")]
            assert written == ([0 if name == "sft_lora" else world, world] if options is DCP else [0, 0])
    check_same(tmp_path, names, "straight", "changing")


@pytest.mark.nightly
def test_an_exported_checkpoint_has_the_tensors_of_one_in_safetensors(
    train_on: Callable[..., None], tmp_path: Path
) -> None:
    train_on(2, "ppo", "whole", **FSDP)
    train_on(2, "ppo", "parts", **DCP)
    whole, parts = (newest_checkpoint(tmp_path / f"{run}-ppo") for run in ("whole", "parts"))
    exported = tmp_path / "exported"
    assert main(["export", str(parts), "--out", str(exported)]) == 0
    assert Checkpoints.open(exported).step == 3
    files = [str(path.relative_to(whole)) for path in sorted(whole.rglob("*")) if path.is_file()]
    written = [path.relative_to(exported) for path in sorted(exported.rglob("*")) if path.is_file()]
    kept = [path for path in written if path.parts[0] == "start"]  # the reference
    assert kept
    assert files == [str(path) for path in written if path not in kept]
    for file in (file for file in files if file.endswith(".safetensors")):
        first, second = load_file(whole / file), load_file(exported / file)
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first), file
    states = [load_state(folder / "trainer.safetensors")["trainer"] for folder in (whole, exported)]
    assert_same(*states)
    with pytest.raises(ModelError, match=r"rlcore export .*00000003 --out FOLDER writes FOLDER/model"):
        load_model(parts / "model", CausalLMConfig())
    weights = AutoModelForCausalLM.from_pretrained(exported / "model").state_dict()
    assert all(torch.equal(weights[name], each) for name, each in load_file(whole / "model/model.safetensors").items())
    shutil.rmtree(tmp_path / "parts-ppo")  # the reference is in the exported folder
    train_on(1, "ppo", "straight", steps=5)
    train_on(1, "ppo", "resumed", steps=5, resume=str(exported))
    for file in ("model.safetensors", "heads.safetensors"):
        first, second = (load_file(tmp_path / f"{run}-ppo" / "model" / file) for run in ("straight", "resumed"))
        assert all(float((each - second[name]).abs().max()) <= CLOSE for name, each in first.items()), file


@pytest.mark.slow
def test_a_checkpoint_of_which_a_rank_is_killed_or_cannot_write_its_part_leaves_the_one_before(
    train_on: Callable[..., None], tmp_path: Path
) -> None:
    train_on(1, "sft", "straight", steps=6)
    printed = train_on(2, "sft", "killed", steps=6, every=2, killed=".tmp-00000004-parts/trainer.dcp", **DCP)
    assert "RanksError: the checkpoint of step 4: another process has ended" in printed
    checkpoints = tmp_path / "killed-sft" / "checkpoints"
    assert sorted(path.name for path in checkpoints.glob("*")) == [".tmp-00000004-parts", "00000002"]
    (checkpoints / ".tmp-00000005-parts").touch()  # a file in the place of the folder
    train_on(2, "sft", "killed", steps=6, every=1, resume="auto", **DCP)
    assert sorted(path.name for path in checkpoints.glob("0*")) == ["00000004", "00000006"]
    assert [path.name for path in checkpoints.glob(".*")] == [".tmp-00000005-parts"]
    check_same(tmp_path, "sft", "straight", "killed")
