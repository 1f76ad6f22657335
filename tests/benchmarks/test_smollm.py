"""Tests of benchmarks/smollm: its configuration files, its student, and its figures; no model is fetched or trained."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch
import yaml
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.smollm import distillation, runner
from rlcore.config import load_yaml, structure
from rlcore.errors import ConfigError
from rlcore.plugins.registry import all_registries
from rlcore.settings import TrainConfig
from rlcore_testing.small import make_llama

FILES = sorted(runner.HERE.glob("*.yaml"))


def test_the_configuration_files_are_valid_for_their_trainers() -> None:
    assert FILES
    for path in FILES:
        settings = structure(TrainConfig, load_yaml(path), where=path.name)
        name, options = settings.trainer["name"], {**settings.trainer}
        del options["name"]
        config = all_registries().trainers.get(name).config_class()
        assert config is not None
        structure(config, options, where=path.name, path="trainer")
        assert settings.run.steps is not None
        with pytest.raises(ConfigError, match=r"trainer\.fold"):
            structure(config, {**options, "fold": 1}, where=path.name, path="trainer")


def test_the_student_has_evenly_spaced_layers_of_its_teacher() -> None:
    teacher = make_llama(layers=13)
    layers = list(teacher.model.layers)
    student = distillation.shortened(teacher)
    assert list(student.model.layers) == [layers[i] for i in (0, 2, 4, 6, 8, 10, 12)]
    assert [layer.self_attn.layer_idx for layer in student.model.layers] == list(range(7))  # places in the cache
    assert student.config.num_hidden_layers == 7
    ids = torch.arange(4, 10)[None]
    with torch.no_grad():
        whole, first = student(ids).logits, student(ids[:, :4], use_cache=True)
        rest = student(ids[:, 4:], past_key_values=first.past_key_values).logits
    assert torch.allclose(torch.cat([first.logits, rest], dim=1), whole, atol=1e-5)


def test_a_mean_has_the_interval_of_the_normal_approximation() -> None:
    # the values 1, 2, 3 have a standard deviation of 1: 2 -+ 1.96 / sqrt(3)
    assert runner.interval_of_mean([1.0, 2.0, 3.0]) == pytest.approx((2.0, 0.86839, 3.13161), abs=1e-5)


def test_a_task_replaces_its_own_line_and_names_absent_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "HERE", tmp_path)
    monkeypatch.setattr(runner, "RESULTS", tmp_path / "results.csv")
    for seed, after in ((0, 0.5), (1, 0.6), (0, 0.7)):
        monkeypatch.setattr(sys, "argv", ["task.py", "--seed", str(seed), "--data", str(tmp_path)])
        task = runner.Task("task", None)
        task.report("right", 4, (0.1, 0.0, 0.2), (after, 0.4, 0.9))
    lines = (tmp_path / "results.csv").read_text().splitlines()
    assert [line.split(",")[:8] for line in lines[1:]] == [
        ["task", "1", "right", "4", "0.100", "0.000", "0.200", "0.600"],
        ["task", "0", "right", "4", "0.100", "0.000", "0.200", "0.700"],
    ]
    with pytest.raises(SystemExit, match=r"task is skipped: .*rows.jsonl does not exist; --data names the folder"):
        task.read("rows.jsonl")


SCRIPTS = [
    pytest.param(path.stem, marks=[pytest.mark.slow, pytest.mark.xdist_group(path.stem)])
    for path in FILES
    if path.with_suffix(".py").exists()
]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny chat model in `model`, and rows in the form of the data."""
    from reviews import train_tokenizer  # of docs/examples, which benchmarks.smollm adds to the path

    folder = tmp_path_factory.mktemp("smollm")
    lines = [f"film {i} is {'good' if i % 2 else 'bad'} , and more of it" for i in range(80)]
    tokenizer = train_tokenizer([*lines, CHATML, "0 1 2 3 4 5 6 7 8 9"], vocab_size=300)
    tokenizer.chat_template = CHATML
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=7, num_attention_heads=2,
        max_position_embeddings=512, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    reviews = [{"text": line, "label": i % 2} for i, line in enumerate(lines)]
    problems = [
        {"question": f"What is {i} + {i}?", "answer": f"<<{i}+{i}={2 * i}>>{2 * i}\n#### {2 * i}"} for i in range(9)
    ]
    for name, rows in ("rt_polarity", reviews), ("gsm8k_train", problems), ("gsm8k_test", problems):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_runs_and_writes_its_figures(
    name: str, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in FILES:
        settings = yaml.safe_load(path.read_text())
        settings["run"] |= {"steps": min(settings["run"]["steps"], 1)}
        small = {"rollouts": 8, "num_generations": 4, "batch_size": 4}
        settings["trainer"] |= {key: small[key] for key in small.keys() & settings["trainer"].keys()}
        if "unfrozen_layers" in settings.get("model", {}):
            settings["model"]["unfrozen_layers"] = 1
        if "gen" in settings:
            settings["gen"]["max_new_tokens"] = 4
        (tmp_path / path.name).write_text(yaml.safe_dump(settings))
    monkeypatch.setattr(runner, "HERE", tmp_path)
    monkeypatch.setattr(runner, "RESULTS", tmp_path / "results.csv")
    monkeypatch.setattr(runner, "fetch", lambda folder, _: folder / "model")
    options = ["--data", str(tiny), "--model", str(tiny), "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [name, *options])
    if name == "distillation":
        (tmp_path / "smollm-gsm8k_sft-0").symlink_to(tiny)
    importlib.import_module(f"benchmarks.smollm.{name}").main()
    assert (tmp_path / "results.csv").read_text().splitlines()[1].startswith(f"{name},0,")
    assert len((tmp_path / f"{name}.csv").read_text().splitlines()) > 1
