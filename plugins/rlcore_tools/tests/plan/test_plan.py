"""Tests of `rlcore plan`: the estimate matches the memory a run uses, and unsupported cases are explained."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from depths import by_day
from peft import LoraConfig, get_peft_model
from planning_making import GPT, LLAMA, WORDS, folders, imitation, judged, ppo, preferences, save
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, GPT2Config

from rlcore.cli import main
from rlcore.config import merge
from rlcore.errors import ConfigError
from rlcore.training.api import train_from_config
from rlcore_ppo.trainer import PPOTrainer
from rlcore_tools.plan.estimate import estimate
from rlcore_tools.plan.fake_tensors import LiveBytes, fake_tensors
from rlcore_tools.plan.sizes import parse_size, write_size
from rlcore_tools.plan.step_memory import Measured
from rlcore_transformers.models.speed.fused_logprobs import score_tokens

__all__ = ["folders"]  # a fixture


@pytest.fixture(scope="module")
def plain(folders: dict[str, Path]) -> Measured:
    """Estimate of `ppo` with unchanged options."""
    return estimate(ppo(folders["gpt"]), "test").measured


def live_peak(values: dict[str, Any], root: Path) -> int:
    """Train for two steps with real tensors and return the peak number of live tensor bytes."""
    short = {"run": {"steps": 2, "name": "run", "root": str(root)}, "loggers": [], "checkpoint": {"at_end": False}}
    with LiveBytes() as live:
        train_from_config(merge(values, short), "test")
    return live.peak


CASES = {
    "ppo": ("gpt", lambda folder: ppo(folder, kl_coef=0.1)),
    "ppo, rounds of many small batches": (
        "gpt",
        lambda folder: merge(
            ppo(folder, kl_coef=0.1, rollouts=64, batch_size=2), {"gen": {"batch_size": 2}, "eval": {"batch_size": 2}}
        ),
    ),
    "ppo, one layer trains": (
        "llama", lambda folder: merge(ppo(folder, micro_batch_size=4), {"model": {"unfrozen_layers": 1}}),
    ),
    "sft, activations computed again": (
        "llama", lambda folder: merge(imitation(folder, "sft"), {"model": {"gradient_checkpointing": True}}),
    ),
    "sft, micro-batches and adafactor": (
        "gpt", lambda folder: imitation(folder, "sft", micro_batch_size=4, optimizer={"name": "adafactor"}),
    ),
    "sft, one sample at a time": ("llama", lambda folder: imitation(folder, "sft", micro_batch_size=1)),
    "ilql": ("llama", lambda folder: imitation(folder, "ilql")),
    "dpo, pairs in micro-batches": ("llama", lambda folder: preferences(folder, micro_batch_size=4)),
    "reward, pairs in micro-batches": ("llama", lambda folder: preferences(folder, "reward", micro_batch_size=4)),
    "ppo, a reward model takes the most": ("gpt", judged),
    "grpo": (
        "llama", lambda folder: {**ppo(folder), "trainer": {"name": "grpo", "rollouts": 16, "num_generations": 4}},
    ),
    "dpo, a reference in every step": ("gpt", lambda folder: preferences(folder, precompute_ref=False, batch_size=8)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", by_day(CASES, list(CASES)[::3]))
def test_the_planned_memory_is_what_tensors_take_in_the_run(
    name: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    family, make = CASES[name]
    values = make(folders[family])
    planned, seen = estimate(values, "test").measured.worst.peak, live_peak(values, tmp_path)
    assert planned == pytest.approx(seen, rel=0.15)


TRAIN = """
import json, sys
from rlcore.training.api import train_from_config
print(train_from_config(json.load(open(sys.argv[1])), "test").metrics["perf/peak_memory_gb"])
"""


@pytest.mark.nightly
def test_the_planned_memory_is_what_a_process_holds(tmp_path: Path) -> None:
    wide = GPT2Config(**{**GPT, "n_embd": 512, "n_head": 8, "n_layer": 2, "vocab_size": 12_000})
    values = merge(
        imitation(save(tmp_path / "wide", wide), "sft"),
        {"run": {"steps": 2, "name": "run", "root": str(tmp_path)}, "loggers": [], "checkpoint": {"at_end": False}},
    )
    # With a fixed threshold, malloc returns freed memory, so that only tensor memory is compared.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}

    def said(*words: str) -> str:
        return subprocess.run(
            [sys.executable, *words], capture_output=True, text=True, check=True, timeout=600, env=environment
        ).stdout

    file = str(write(tmp_path, values))
    planned, held = json.loads(said("-m", "rlcore", "plan", file, "--json")), said("-c", TRAIN, file)
    seen = float(held.splitlines()[-1]) * 1e9
    assert planned["peak"] - planned["baseline"] > 150e6
    assert planned["peak"] == pytest.approx(seen, rel=0.15)
    assert planned["peak"] - planned["baseline"] == pytest.approx(seen - planned["baseline"], rel=0.15)


def write(folder: Path, values: dict[str, Any]) -> Path:
    file = folder / "run.yaml"
    file.write_text(json.dumps(values))  # JSON is also YAML
    return file


def test_live_memory_counts_views_once_and_drops_freed_tensors() -> None:
    with LiveBytes() as live:
        kept = torch.zeros(1000)
        turned = kept.reshape(10, 100).t()
        assert live.now == 4000
        more = turned @ turned.t()
        assert (live.now, live.peak) == (4000 + 40_000, 44_000)
        del more
    assert (live.now, live.peak) == (4000, 44_000)


def test_fake_tensors_take_nothing_and_integers_stay_real() -> None:
    with fake_tensors() as mode:
        weight = torch.empty(10**6, 10**6)
        mask = torch.tensor([True, False, True])
        picked = weight[:3][mask]
        largest = int((weight[0, :8] > 0).sum())
    assert mode.live.now >= 4 * 10**12
    assert (picked.shape, largest) == ((2, 10**6), 0)


@pytest.mark.slow
def test_two_devices_divide_the_sequences_and_each_holds_its_gradients_once(
    plain: Measured, folders: dict[str, Path]
) -> None:
    two = estimate(ppo(folders["gpt"]), "test", world=2).measured
    assert two.held["gradients in the buffers of their exchange"] == two.held["parameters that train"]
    kept = [next(p for p in each.phases if p.name == "update").parts for each in (plain, two)]
    assert kept[1].get("gradients", 0) == 0  # they lie in these buffers
    name = "activations kept for the backward pass"
    assert kept[1].get(name, 0) == pytest.approx(kept[0][name] / 2, rel=0.1)


def test_gradients_of_earlier_micro_batches_are_beside_the_buffers_of_their_exchange(folders: dict[str, Path]) -> None:
    found = estimate(imitation(folders["llama"], "sft", micro_batch_size=4), "test", world=2).measured
    update = next(p for p in found.phases if p.name == "update").parts
    assert update["gradients"] == found.held["gradients in the buffers of their exchange"] > 0


def test_planning_a_few_tiles_of_logits_gives_the_peak_of_all_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    def peak(num_tiles: int) -> int:
        monkeypatch.setattr("rlcore_tools.plan.fake_tensors.NUM_TILES", num_tiles)
        with fake_tensors() as mode:
            hidden, weight = torch.zeros(64, 4, requires_grad=True), torch.zeros(512, 4, requires_grad=True)
            said = score_tokens(hidden, weight, None, torch.zeros(64, dtype=torch.long), tile=(32, 64))
            said.logprobs.sum().backward()
        return mode.live.peak

    assert peak(1) < peak(3) == peak(10**6)


def test_the_parts_of_an_update_add_up_and_none_is_negative(folders: dict[str, Path]) -> None:
    values = merge(ppo(folders["gpt"], rollouts=4, batch_size=4), {"gen": {"max_new_tokens": 8}})
    found = estimate(values, "test").measured
    update = next(phase for phase in found.phases if phase.name == "update")
    assert sum(found.held.values()) + sum(update.parts.values()) == pytest.approx(update.peak, rel=1e-4)
    assert min(size for phase in found.phases for size in phase.parts.values()) >= 0


@pytest.mark.slow
def test_the_copy_that_samples_counts_in_the_update_too(plain: Measured, folders: dict[str, Path]) -> None:
    other = estimate(merge(ppo(folders["gpt"]), {"model": {"sampling_dtype": "bfloat16"}}), "test").measured
    kept = other.held["buffers kept by sampling"]
    assert plain.held["buffers kept by sampling"] == 0
    assert kept == pytest.approx(
        sum(plain.held[f"parameters that {what}"] for what in ("train", "are frozen")) / 2, rel=0.1
    )
    updates = [next(p.peak for p in each.phases if p.name == "update") for each in (plain, other)]
    assert updates[1] - updates[0] == kept


def test_the_workload_of_a_trainer_that_declares_none_is_guessed_with_a_note(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(PPOTrainer, "workload")
    notes = estimate(ppo(folders["gpt"]), "test").notes
    assert len(notes) == 1
    assert "declares no workload" in notes[0]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"trainer": {"name": "ppo"}}, "model.path is missing"),
        ({"model": {"path": "./nowhere"}, "trainer": {"name": "sft"}, "data": {"samples": ["w1 w2"]}}, "nowhere"),
        ({"model": {"path": "FOLDER"}, "trainer": {"name": "ppo"}}, "needs reward_fn and prompts"),
        ({"model": {"path": "FOLDER"}, "trainer": {"name": "poo"}}, "no trainer is called 'poo'"),
        ({"model": {"path": "FOLDER"}, "trainer": {"name": "sft"}, "data": {"samples": "no.jsonl"}}, "no.jsonl"),
    ],
)
def test_a_wrong_configuration_of_a_plan_is_an_error_without_a_traceback(
    values: dict[str, Any], said: str, folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = json.dumps(values).replace("FOLDER", str(folders["gpt"]))
    assert main(["plan", str(write(tmp_path, json.loads(text)))]) == 1
    assert said in capsys.readouterr().err


def test_a_run_that_trains_a_scorer_updates_pairs_and_samples_nothing(folders: dict[str, Path]) -> None:
    values = preferences(folders["llama"], "reward", batch_size=4)
    found = estimate(merge(values, {"data": {"eval_prompts": ["w1"]}}), "test")
    assert [phase.name for phase in found.measured.phases] == ["update"]
    assert (found.workload.batch_size, found.workload.group, found.notes) == (8, 2, ())
    model = AutoModelForSequenceClassification.from_pretrained(folders["judge"])  # of the same sizes
    padding = LLAMA["hidden_size"] * 4  # a new scorer has a padding token of its own
    size = sum(4 * parameter.numel() for parameter in model.parameters())
    assert found.measured.held["parameters that train"] == size + padding


OTHER_LOGPROBS: dict[str, dict[str, Any]] = {
    "an option on tokens": {"name": "default", "min_p": 0.1},
    "a server": {"name": "vllm", "url": "http://127.0.0.1:9"},
}


@pytest.mark.slow
@pytest.mark.parametrize("sampler", OTHER_LOGPROBS.values(), ids=list(OTHER_LOGPROBS))
def test_rollouts_whose_log_probs_are_not_the_policys_are_scored(
    sampler: dict[str, Any], folders: dict[str, Path]
) -> None:
    values = merge(ppo(folders["gpt"], kl_coef=0.0), {"gen": {"reused_logprobs": True}})
    exact, other = (estimate({**values, **more}, "test").measured for more in ({}, {"sampler": sampler}))
    assert "scoring" not in [phase.name for phase in exact.phases]
    assert "scoring" in [phase.name for phase in other.phases]


@pytest.mark.slow
def test_a_reward_model_is_held_throughout_and_scores_in_batches(folders: dict[str, Path]) -> None:
    one, two = (estimate(judged(folders["gpt"], batch_size=size), "test").measured for size in (4, 8))
    model = AutoModelForSequenceClassification.from_pretrained(folders["judge"])
    held = sum(4 * parameter.numel() for parameter in model.parameters())
    assert one.held["reward models"] == pytest.approx(held, rel=0.01)  # and buffers
    passes = [next(p for p in each.phases if p.name == "reward reward_model").parts["one pass"] for each in (one, two)]
    assert passes[1] == pytest.approx(2 * passes[0], rel=0.1)
    elsewhere = estimate(judged(folders["gpt"], device="meta"), "test").measured
    assert elsewhere.held["reward models"] == 0


def test_a_missing_file_and_an_unreadable_amount_of_memory_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "nothing.yaml"]) == 1
    assert main(["plan", "nothing.yaml", "--device-memory", "much"]) == 1
    assert "must be an amount of memory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "size"), [("24GB", 24 * 10**9), ("1.5GiB", 3 * 2**29), ("512 mb", 512 * 10**6), ("7", 7)]
)
def test_amounts_of_memory_are_parsed_and_printed_with_units(text: str, size: int) -> None:
    assert parse_size(text) == size
    with pytest.raises(ConfigError):
        parse_size(f"-{text}")
    sizes = {24 * 10**9: "24.00 GB", 10**9 - 10**7: "990.0 MB", 100_000: "0.1 MB", 99_000: "99.0 kB", 64: "0.1 kB"}
    assert {size: write_size(size) for size in sizes} == sizes


@pytest.mark.parametrize("critic", [None, "FOLDER", "copy"])
def test_no_weights_are_read_neither_the_models_nor_its_critics(
    critic: str | None, plain: Measured, folders: dict[str, Path], tmp_path: Path
) -> None:
    described = tmp_path / "described"
    shutil.copytree(folders["gpt"], described, ignore=shutil.ignore_patterns("*.safetensors"))
    values = ppo(described)
    values["model"]["critic"] = str(described) if critic == "FOLDER" else critic
    trained = estimate(values, "test").measured.held["parameters that train"]
    expected = plain.held["parameters that train"]
    assert trained == expected if critic is None else trained > 1.9 * expected - 4 * GPT["n_embd"] * WORDS


@pytest.mark.slow
def test_no_weights_are_read_of_the_model_below_an_adapter(folders: dict[str, Path], tmp_path: Path) -> None:
    described, adapter = tmp_path / "described", tmp_path / "adapter"
    shutil.copytree(folders["gpt"], described)
    model = AutoModelForCausalLM.from_pretrained(described)
    get_peft_model(model, LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)).save_pretrained(adapter)
    (described / "model.safetensors").unlink()
    assert json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"] == str(described)
    values = ppo(adapter)
    values["model"]["tokenizer"] = {"path": str(described)}
    held = estimate(values, "test").measured.held
    assert 0 < held["parameters that train"] < held["parameters that are frozen"]
