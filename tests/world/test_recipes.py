"""Recipes in the shapes that people publish become configurations that a run accepts, with the options worked by hand.

The files in `recipes` were written for these tests, with the keys and the usual values of TRL's scripts, open-r1,
alignment-handbook, axolotl, LLaMA-Factory and trlX.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlcore.cli import main
from rlcore.config import load_yaml, structure
from rlcore.settings import TrainConfig
from rlcore_tools.doctor.doctor_command import examine

RECIPES = Path(__file__).parent / "recipes"

OF_TRL = {
    "trainer.optimizer.betas": [0.9, 0.999],
    "trainer.optimizer.eps": 1e-8,
    "trainer.optimizer.max_grad_norm": 1.0,
}

THINKER = 'First think: inside <think> tags.\n\n<think>\n...\n</think>\n# Then answer\n\teval: {every: 7}\n--- "done"'
QWEN_TEMPLATE = """\
{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are helpful: "always".<|im_end|>\\n' }}
{%- endif %}
{#- no tools here: #}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
"""
ZEPHYR_TEMPLATE = (
    "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + "
    "eos_token }}\n{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}"
    "\n{% endif %}\n{% endfor %}"
)
ABSENT = "absent"

# file → words of the command, options that must come out, and the keys that are named as not converted, in any order
TABLE: dict[str, tuple[list[str], dict[str, Any], list[str]]] = {
    "trl_sft_lora.yaml": (
        [],
        {
            **OF_TRL,
            "model.path": "HuggingFaceTB/SmolLM2-135M", "model.dtype": "bfloat16", "model.gradient_checkpointing": True,
            "model.peft.type": "lora", "model.peft.r": 16, "model.peft.lora_alpha": 32, "model.peft.lora_dropout": 0.0,
            "model.peft.target_modules": "all-linear", "trainer.name": "sft",
            "trainer.batch_size": 8,  # 4 on a device, accumulated twice
            "trainer.micro_batch_size": 4, "trainer.optimizer.lr": 2e-4, "trainer.optimizer.scheduler": "cosine",
            "trainer.optimizer.warmup_steps": 50, "data.samples": "trl-lib/Capybara",
            "data.eval_samples": "trl-lib/Capybara:test", "data.max_sample_tokens": 2048, "eval.every": 100,
            "eval.batch_size": 4, "checkpoint.every": 200, "checkpoint.keep_last": 3, "run.epochs": 2, "run.seed": 7,
            "run.root": "outputs", "run.name": "sft-lora", "run.mixed_precision": "bf16",
            "loggers": [
                {"name": "console", "every": 10},
                {"name": "wandb", "project": "capybara", "run_name": "capybara one"},
            ],
        },
        [],
    ),
    "trl_dpo.yaml": (
        [],
        {
            **OF_TRL,
            "model.dtype": "float32", "model.attention": "sdpa", "trainer.name": "dpo", "trainer.loss.sigmoid": 0.8,
            "trainer.loss.sft": 1.0, "trainer.beta": 0.05, "trainer.precompute_ref": True, "trainer.batch_size": 16,
            "trainer.optimizer.lr": 5e-7,
            "trainer.optimizer.warmup_steps": 40,  # a tenth of 400 steps
            "data.samples": "trl-lib/ultrafeedback_binarized:train",
            "data.eval_samples": "trl-lib/ultrafeedback_binarized:test", "data.max_sample_tokens": 1024,
            "data.max_prompt_tokens": 512, "eval.at_end": False, "checkpoint.at_end": False, "run.steps": 400,
            "run.epochs": ABSENT, "run.root": ".", "run.name": "dpo", "run.mixed_precision": "bf16",
            "run.push_to_hub": ABSENT, "loggers": [{"name": "console", "every": 25}],
        },
        ["hub_model_id"],
    ),
    "trl_grpo.yaml": (
        [],
        {
            **OF_TRL,
            "trainer.name": "grpo",
            "trainer.rollouts": 64,  # 8 on each of 4 processes, accumulated twice
            "trainer.micro_batch_size": 8, "trainer.num_generations": 16, "trainer.norm": "constant",
            "trainer.scale": "none", "trainer.kl_coef": 0.0, "trainer.clip_low": 0.2, "trainer.clip_high": 0.28,
            "trainer.optimizer.lr": 1e-6, "trainer.is_correction": ABSENT, "run.processes": 4, "run.steps": 300,
            "run.rollouts": "all", "gen.max_new_tokens": 256, "gen.temperature": 0.9, "gen.top_p": 0.95,
            "data.prompts": "trl-lib/DeepMath-103K",
            "data.reward_fn": [
                {"fn": "my_rewards.length:short", "weight": 0.5}, {"fn": "my_rewards:right", "weight": 2},
            ],
            "loggers": ["console", {"name": "tensorboard", "log_dir": "tb/grpo"}],
        },
        ["env"],
    ),
    "trl_kto.yaml": (
        ["--trainer", "kto"],
        {
            **OF_TRL,
            "trainer.name": "dpo", "trainer.loss": "kto", "trainer.beta": 0.1, "trainer.desirable_weight": 1.0,
            "trainer.undesirable_weight": 1.33, "trainer.optimizer.scheduler": "constant", "trainer.batch_size": 4,
            "run.name": "kto-aligned",
        },
        ["train_sampling_strategy"],
    ),
    "trl_reward.yaml": (
        [],
        {
            **OF_TRL, "trainer.name": "reward", "trainer.max_length": 2048, "trainer.center_coef": 0.01,
            "trainer.dropout": False, "trainer.batch_size": 8, "eval.every": 50, "data.max_sample_tokens": ABSENT,
        },
        [],
    ),
    "trl_arguments.json": (
        [],
        {
            "trainer.name": "sft", "trainer.optimizer.betas": [0.9, 0.95], "trainer.optimizer.name": "adamw",
            "trainer.batch_size": 8, "data.max_sample_tokens": 512, "run.epochs": 3.0, "run.steps": ABSENT,
            "run.seed": 42, "checkpoint.every": 500, "run.root": "runs", "run.name": "json",
            "loggers": [{"name": "console", "every": 10}, "wandb"],
        },
        [],
    ),
    "trl_ppo.yaml": (
        [],
        {
            **OF_TRL,
            "trainer.name": "ppo", "model.path": "EleutherAI/pythia-1b-deduped",
            "data.reward_fn": {"fn": "reward_model", "path": "someone/pythia-1b-reward"},
            "data.prompts": "trl-internal-testing/descriptiveness:descriptiveness",
            "trainer.batch_size": 64, "trainer.rollouts": 128,  # two minibatches of 16 * 4
            "trainer.epochs": 4, "trainer.kl_coef": 0.05, "trainer.missing_eos_penalty": 1.0, "gen.max_new_tokens": 53,
            "run.steps": 79,  # ceil(10000 / 128)
            "trainer.optimizer.lr": 3e-6,
        },
        ["sft_model_path", "stop_token"],
    ),
    "trl_rloo.yaml": (
        [],
        {
            **OF_TRL, "trainer.name": "grpo", "trainer.preset": "rloo", "trainer.level": "product",
            "trainer.num_generations": 4, "trainer.kl_coef": 0.03, "trainer.scale": "batch", "trainer.rollouts": 8,
            "data.reward_fn": ["my_rewards:right"], "data.prompts": "trl-lib/tldr",
        },
        [],
    ),
    "trl_distillation.yaml": (
        [],
        {
            **OF_TRL, "trainer.name": "distill", "trainer.teacher": "Qwen/Qwen2-1.5B-Instruct",
            "trainer.on_policy": 0.25, "trainer.divergence": "jsd", "trainer.beta": 0.5, "trainer.temperature": 1.0,
            "gen.temperature": 0.7, "gen.max_new_tokens": 128, "trainer.batch_size": 32, "run.steps": 100,
        },
        [],
    ),
    "openr1_grpo.yaml": (
        [],
        {
            **OF_TRL,
            "data.system_prompt": THINKER, "data.prompt_column": "problem", "data.as_messages": True,
            "data.prompts": "someone/maths:default:train", "data.max_prompt_tokens": 512, "data.reward_fn": ABSENT,
            "gen.max_new_tokens": 1024, "gen.temperature": 0.7, "model.attention": "flash_attention_2",
            "trainer.name": "grpo", "trainer.rollouts": 64, "trainer.num_generations": 16,
            "trainer.optimizer.scheduler": "cosine_with_min_lr",
            "trainer.optimizer.scheduler_options.min_lr_rate": 0.1, "eval.every": ABSENT,
            "run.push_to_hub": "someone/thinker", "run.rollouts": "all", "run.overwrite": True,
            "loggers": ["console", {"name": "wandb", "project": "thinking", "entity": "someone", "group": "small"}],
        },
        [
            "reward_funcs", "cosine_max_len", "warmup_ratio", "save_strategy", "use_vllm", "log_level",
            "gradient_checkpointing_kwargs", "logging_first_step",
        ],
    ),
    "openr1_sft.yaml": (
        [],
        {
            "model.tokenizer.chat_template": QWEN_TEMPLATE, "model.tokenizer.eos_token": "<|im_end|>",
            "model.liger_kernel": True, "data.samples": "someone/traces:all:train", "data.max_sample_tokens": 32768,
            "trainer.name": "sft", "trainer.optimizer.max_grad_norm": 0.2, "trainer.optimizer.warmup_steps": 30,
            "run.push_to_hub": ABSENT, "checkpoint.every": 250, "loggers": ["console", "wandb"],
        },
        ["push_to_hub", "dataset_num_proc", "gradient_checkpointing_kwargs"],
    ),
    "openr1_mixture.yaml": (
        [],
        {
            **OF_TRL,
            "data.samples": [{"path": "someone/maths:default:train"}, {"path": "someone/code:train_half"}],
            "data.system_prompt": "You are brief.", "trainer.name": "sft",
        },
        [
            "dataset_mixture.datasets[0].columns", "dataset_mixture.datasets[1], weight of someone/code",
            "dataset_mixture.seed", "dataset_mixture.test_split_size", "benchmarks", "callbacks",
        ],
    ),
    "openr1_code.yaml": (
        ["--trainer", "grpo", "--processes", "2"],
        {
            **OF_TRL,
            "data.prompts": "someone/programs:python:train",
            "data.reward_fn": [
                {"fn": "reward_model", "path": "someone/code-reward-model", "weight": 1.0},
                {"fn": "my_rewards:compiles", "weight": 0.1},
            ],
            "trainer.name": "grpo", "trainer.rollouts": 32, "trainer.num_generations": 4, "checkpoint.every": ABSENT,
        },
        ["callbacks", "env", "save_steps"],
    ),
    "handbook_sft_qlora.yaml": (
        [],
        {
            **OF_TRL,
            "model.tokenizer.chat_template": ZEPHYR_TEMPLATE, "model.quantization": "4bit", "model.peft.r": 16,
            "model.peft.target_modules": ["q_proj", "v_proj"], "model.attention": "flash_attention_2",
            "data.samples": "HuggingFaceH4/ultrachat_200k:train_sft",
            "data.eval_samples": "HuggingFaceH4/ultrachat_200k:test_sft", "data.max_sample_tokens": 2048,
            "run.push_to_hub": "someone/zephyr-7b-sft-qlora", "run.steps": ABSENT, "run.epochs": 1,
            "loggers": [{"name": "console", "every": 5}, "tensorboard"],
        },
        ["evaluation_strategy", "preprocessing_num_workers", "do_eval", "log_level"],
    ),
    "handbook_dpo.yaml": (
        [],
        {
            **OF_TRL, "trainer.name": "dpo", "trainer.beta": 0.01, "trainer.label_smoothing": 0.1,
            "data.samples": [
                {"path": "HuggingFaceH4/ultrafeedback_binarized:train_prefs"}, {"path": "someone/more:train_prefs"},
            ],
            "data.eval_samples": [
                {"path": "HuggingFaceH4/ultrafeedback_binarized:test_prefs"}, {"path": "someone/more:test_prefs"},
            ],
            "model.dtype": ABSENT, "eval.every": 100, "trainer.batch_size": 16,
        },
        ["dataset_mixer, weight of someone/more", "preprocessing_num_workers", "do_eval", "log_level"],
    ),
    "handbook_orpo.yaml": (
        ["--trainer", "orpo", "--processes", "8"],
        {
            **OF_TRL, "trainer.name": "dpo", "trainer.loss": "orpo", "trainer.nll": "full", "trainer.beta": 0.05,
            "trainer.batch_size": 64, "run.processes": 8, "trainer.optimizer.name": "adamw_8bit",
            "trainer.optimizer.scheduler": "inverse_sqrt", "loggers": ["console", "wandb", "tensorboard"],
        },
        [],
    ),
    "axolotl_qlora.yaml": (
        [],
        {
            "trainer.name": "sft", "model.path": "NousResearch/Llama-3.2-1B", "model.quantization": "4bit",
            "model.peft.r": 32, "model.peft.lora_alpha": 16, "model.peft.lora_dropout": 0.05,
            "model.peft.target_modules": "all-linear", "model.attention": "flash_attention_2",
            "model.tokenizer.pad_token": "<|end_of_text|>", "model.tokenizer.chat_template": ABSENT,
            "data.samples": [{"path": "teknium/GPT4-LLM-Cleaned"}, {"path": "data/extra.jsonl"}],
            "data.max_sample_tokens": 2048, "trainer.batch_size": 8, "trainer.micro_batch_size": 2,
            "trainer.optimizer.name": "adamw_8bit", "trainer.optimizer.scheduler": "cosine",
            "trainer.optimizer.lr": 2e-4, "trainer.optimizer.warmup_steps": 10, "run.epochs": 1, "run.root": "outputs",
            "run.name": "qlora-out", "run.mixed_precision": "bf16",
            "loggers": ["console", {"name": "wandb", "project": "llamas", "run_name": "first"}],
        },
        [
            "datasets[0].type", "datasets[1].type", "datasets[1].field_messages", "model_type", "tokenizer_type",
            "dataset_prepared_path", "pad_to_sequence_len", "evals_per_epoch", "saves_per_epoch", "chat_template",
            "val_set_size", "sample_packing",
        ],
    ),
    "axolotl_dpo.yaml": (
        [],
        {
            "trainer.name": "dpo", "trainer.beta": 0.2, "model.attention": "sdpa", "model.trust_remote_code": True,
            "model.tokenizer.chat_template": "{% for m in messages %}<{{ m.role }}>: {{ m.content }}\n{% endfor %}",
            "model.tokenizer.eos_token": "<|end_of_text|>",
            "model.tokenizer.extra_special_tokens": ["<think>", "</think>"],
            "data.system_prompt": "You are: a helper.\n# and kind\n", "data.samples": "someone/pairs:train",
            "data.eval_samples": "someone/pairs:test", "data.max_sample_tokens": 4096, "eval.every": 50,
            "checkpoint.every": 200, "run.epochs": 4, "loggers": ["console", {"name": "wandb", "project": "pairs"}],
        },
        [
            "datasets[0].type", "datasets[0].field_messages", "datasets[0].field_chosen", "datasets[0].field_rejected",
            "datasets[0].roles_to_train", "early_stopping_patience", "wandb_watch", "deepspeed",
        ],
    ),
    "axolotl_grpo.yaml": (
        [],
        {
            "trainer.name": "grpo", "trainer.num_generations": 4, "trainer.rollouts": 8, "trainer.kl_coef": 0.001,
            "gen.max_new_tokens": 256, "data.prompts": "openai/gsm8k:main:train",
            "data.reward_fn": [{"fn": "rewards:right", "weight": 1.0}], "run.steps": 100, "run.seed": 11,
        },
        ["datasets[0].type", "use_vllm", "sequence_len"],
    ),
    "llama_factory_sft_lora.yaml": (
        [],
        {
            "trainer.name": "sft", "model.peft.r": 8, "model.peft.lora_alpha": 16,  # twice the rank
            "model.peft.lora_dropout": 0.0, "model.peft.target_modules": ["q_proj", "v_proj"],
            "trainer.batch_size": 8, "trainer.optimizer.lr": 1e-4, "data.max_sample_tokens": 2048,
            "data.chat_template_options.enable_thinking": False, "run.overwrite": True,
            "run.root": "saves/llama3-8b/lora", "run.name": "sft",
        },
        [
            "dataset", "template", "max_samples", "overwrite_cache", "plot_loss", "warmup_ratio",
            "preprocessing_num_workers", "val_size",
        ],
    ),
    "llama_factory_simpo.yaml": (
        [],
        {
            "trainer.name": "dpo", "trainer.loss": "simpo", "trainer.beta": 2.0, "trainer.gamma": 0.7,
            "trainer.sft_coef": 0.0, "trainer.batch_size": 8, "model.peft": ABSENT,
            "model.attention": "flash_attention_2", "data.max_sample_tokens": 1024,
        },
        ["dataset", "template", "deepspeed"],
    ),
    "llama_factory_kto.yaml": (
        [],
        {
            "trainer.name": "dpo", "trainer.loss": "kto", "trainer.undesirable_weight": 1.5,
            "model.unfrozen_layers": 3, "model.peft": ABSENT, "model.quantization": ABSENT,
            "data.system_prompt": 'Be kind:\n- always\n- "really"', "data.max_sample_tokens": 2048,
            "trainer.optimizer.lr": 5e-5, "run.steps": 60,
        },
        ["dataset"],
    ),
    "trlx_ppo.yml": (
        [],
        {
            "trainer.name": "ppo", "trainer.rollouts": 128, "trainer.batch_size": 32, "trainer.epochs": 4,
            "trainer.kl_coef": 0.001, "trainer.score_scaling": "none", "trainer.score_max": 10.0,
            "trainer.optimizer.scheduler": "constant", "model.path": "lvwerra/gpt2-imdb",
            "model.unfrozen_layers": ABSENT, "model.tokenizer.path": "gpt2",
            "data.max_prompt_tokens": 984,  # 1024 - 40
            "run.steps": 100, "eval.every": 7,  # ceil(100 / 16), with rounds of 4 * 128 / 32 optimizer steps
            "run.seed": 1000,
            "loggers": ["console", {"name": "wandb", "project": "sentiments", "tags": ["ppo", "first: try"]}],
        },
        [],
    ),
    "trlx_first_ppo.yml": (
        [],
        {
            "trainer.name": "ppo", "trainer.rollouts": 128, "trainer.optimizer.lr": 1.4e-4,
            "trainer.optimizer.scheduler": "constant",  # its lowest rate is that of the start
            "trainer.optimizer.betas": [0.9, 0.95], "trainer.optimizer.eps": 1e-8,
            "trainer.optimizer.weight_decay": 1e-6, "model.tokenizer.path": "gpt2", "model.unfrozen_layers": 2,
            "gen.top_k": 0, "gen.max_new_tokens": ABSENT, "data.max_prompt_tokens": ABSENT,
            "run.steps": 100, "eval.every": 25, "checkpoint.every": 2500,  # rounds of 4 optimizer steps
        },
        ["gen_kwargs.max_length", "gen_kwargs.min_length", "train.orchestrator", "train.pipeline", "train.seq_length"],
    ),
    "trlx_ilql.yml": (
        ["--processes", "2"],
        {
            "trainer.name": "ilql", "trainer.tau": 0.7, "trainer.num_q_heads": 2, "trainer.batch_size": 256,
            "run.processes": 2, "gen.top_k": 20, "gen.beta": 1.0, "eval.gen.beta": [1, 4], "model.unfrozen_layers": 2,
            "data.max_sample_tokens": 64, "run.steps": 1000,
        },
        [],
    ),
    "trlx_sft_lora.yml": (
        [],
        {
            "trainer.name": "sft", "model.peft.type": "lora", "model.peft.r": 8, "trainer.micro_batch_size": 2,
            "data.max_sample_tokens": 1024, "loggers": ["console", {"name": "tensorboard", "log_dir": "logs"}],
            "run.root": "ckpts", "run.name": "sft",
        },
        [],
    ),
}  # fmt: skip


def convert(source: Path, out: Path, *words: str) -> int:
    return main(["convert", str(source), "--out", str(out), *words])


def option_of(values: Any, path: str) -> Any:
    for step in path.split("."):
        if not isinstance(values, Mapping) or step not in values:
            return ABSENT
        values = values[step]
    return values


def left_in(said: str) -> list[str]:
    """Return the keys that the command named as not converted."""
    return sorted(re.findall(r"^not converted: (.*?) = ", said, re.MULTILINE))


@pytest.mark.parametrize("name", sorted(TABLE))
def test_a_published_recipe_becomes_a_configuration_that_a_run_accepts(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words, wanted, left = TABLE[name]
    out = tmp_path / "run.yaml"
    assert convert(RECIPES / name, out, *words) == 0
    values = load_yaml(out)
    assert {path: option_of(values, path) for path in wanted} == wanted
    assert left_in(capsys.readouterr().err) == sorted(left)
    report = examine(out)["config"]  # the names of all components and their options are checked too
    assert [line for line in report["errors"] if "no logger is called" not in line] == []


def test_the_table_has_every_recipe() -> None:
    assert {path.name for path in RECIPES.iterdir()} == {*TABLE, "trlx_sweep.yml"}


def test_a_sweep_of_trlx_lists_null_for_all_layers(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert convert(RECIPES / "trlx_sweep.yml", tmp_path / "sweep.yaml", "--trainer", "ppo") == 0
    sweep = load_yaml(tmp_path / "sweep.yaml")["sweep"]
    assert sweep["space"] == {
        "trainer.optimizer.lr": "loguniform(1e-05, 0.01)", "model.unfrozen_layers": [None, 2, 4],
        "trainer.kl_coef": "uniform(0, 0.2)",
    }  # fmt: skip
    assert left_in(capsys.readouterr().err) == []


SWEPT = [
    ("num_layers_unfrozen", "choice", [-1, 2], [None, 2]),
    ("model.num_layers_unfrozen", "grid", [-1], [None]),
    ("method.num_value_layers_unfrozen", "choice", [0, 1], [0, 1]),
    ("model.num_layers_unfrozen", "randint", [-1, 3], "not converted: model.num_layers_unfrozen = randint"),
    ("model.num_layers_unfrozen", "choice", [-2], "model.unfrozen_layers = -2: must be at least 0"),
    ("method.gamma", "uniform", [0.5, 1.5], "method.gamma: trainer.gamma = 1.5: must lie in [0, 1]"),
    ("method.gamma", "uniform", ["low", 1], "the bounds of a range must be numbers"),
    ("train.seed", "randint", [-1, 5], "train.seed: run.seed = -1: must lie in"),
    ("lr_init", "choice", ["fast"], "lr_init: trainer.optimizer.lr = 'fast': must be a number"),
]


@pytest.mark.parametrize(("name", "strategy", "values", "wanted"), SWEPT, ids=str)
def test_a_swept_value_is_one_that_the_option_can_have(
    name: str, strategy: str, values: list[Any], wanted: Any, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    file, out = tmp_path / "sweep.json", tmp_path / "sweep.yaml"
    file.write_text(json.dumps({"tune_config": {}, name: {"strategy": strategy, "values": values}}))
    status = convert(file, out, "--trainer", "ppo")
    if isinstance(wanted, list):
        assert list(load_yaml(out)["sweep"]["space"].values()) == [wanted]
    else:
        assert wanted in capsys.readouterr().err
        assert status == (0 if wanted.startswith("not converted") else 1)
        assert out.exists() == (status == 0)


BASE = {
    "grpo": {"num_generations": 2, "max_completion_length": 8},
    "sft": {"assistant_only_loss": True},
    "dpo": {"beta": 0.1},
}
REFUSED = [
    ("sft", "seed", -1, "seed = -1: run.seed = -1: must lie in [0, 4294967295]"),
    ("sft", "seed", "first", "seed = 'first': must be a number"),
    ("sft", "seed", 1.5, "seed = 1.5: must be a whole number"),
    ("grpo", "loss_type", 5, "loss_type = 5: must be a name, or a list of names"),
    ("dpo", "loss_type", 5, "loss_type = 5: must be a name, or a list of names"),
    ("dpo", "loss_type", "hinges", "loss_type = hinges: trainer.loss = 'hinges'"),
    ("dpo", "beta", -1, "beta = -1: trainer.beta = -1: must"),
    ("dpo", "beta", float("nan"), "beta = nan: must be a number that is finite"),
    ("sft", "max_steps", float("nan"), "max_steps = nan: must be a number"),
    ("sft", "num_train_epochs", -1, "num_train_epochs = -1: run.epochs = -1: must"),
    ("sft", "learning_rate", 0, "learning_rate = 0: trainer.optimizer.lr = 0: must"),
    ("sft", "learning_rate", [1e-5], "learning_rate = [1e-05]: must be a number"),
    ("sft", "weight_decay", -0.1, "weight_decay = -0.1: trainer.optimizer.weight_decay = -0.1: must"),
    ("sft", "adam_beta2", 1.5, "adam_beta2 = 1.5: trainer.optimizer.betas"),
    ("sft", "max_grad_norm", -1, "max_grad_norm = -1: trainer.optimizer.max_grad_norm = -1: must be at least 0"),
    ("sft", "per_device_train_batch_size", 0, "per_device_train_batch_size = 0: must be at least 1"),
    ("sft", "gradient_accumulation_steps", 2.5, "gradient_accumulation_steps = 2.5: must be a whole number"),
    ("grpo", "num_generations", -2, "num_generations = -2: must be at least 1"),
    ("grpo", "temperature", -1, "temperature = -1: gen.temperature = -1: must"),
    ("grpo", "top_p", 2, "top_p = 2: gen.top_p = 2: must"),
    ("grpo", "max_completion_length", "long", "max_completion_length = 'long': must be a number"),
    ("grpo", "reward_weights", [1, 2], "reward_weights = [1, 2]: must be a list of a number for each of 1 functions"),
    ("sft", "warmup_steps", -3, "warmup_steps = -3: must be at least 0"),
    ("sft", "max_length", 12.5, "max_length = 12.5: must be a whole number"),
    ("sft", "bf16", "maybe", "bf16 = 'maybe': must be true or false"),
    ("sft", "packing", 5, "packing = 5: must be true or false"),
    ("sft", "system_prompt", ["a"], "system_prompt = ['a']: must be a text"),
    ("sft", "chat_template", {"a": 1}, "chat_template = {'a': 1}: must be a text"),
    ("sft", "model_name_or_path", ["a"], "model_name_or_path = ['a']: must be a text"),
    ("sft", "torch_dtype", "bf17", "torch_dtype = bf17: model.dtype = 'bf17': must be"),
    ("sft", "attn_implementation", 2, "attn_implementation = 2: must be a text"),
    ("sft", "eval_strategy", 1, "eval_strategy = 1: must be a text"),
    ("sft", "evaluation_strategy", 1, "evaluation_strategy = 1: must be a text"),
    ("sft", "save_total_limit", 0, "save_total_limit = 0: checkpoint.keep_last = 0: must"),
    ("sft", "wandb_project", 5, "wandb_project = 5: must be a text"),
    ("sft", "dataset_mixer", ["a"], "dataset_mixer = ['a']: must be a mapping"),
    ("sft", "dataset_mixture", {"datasets": "a"}, "dataset_mixture = {'datasets': 'a'}: must be a mapping with a list"),
    ("sft", "num_processes", 0, "num_processes = 0: must be at least 1"),
]


def write(file: Path, values: Mapping[str, Any]) -> Path:
    """Write values as YAML that is JSON but for numbers that are not finite."""
    file.write_text(
        re.sub(r"\b(NaN|Infinity)\b", lambda word: {"NaN": ".nan"}.get(word[0], ".inf"), json.dumps(values))
    )
    return file


@pytest.mark.parametrize(("trainer", "name", "value", "said"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_value_of_a_wrong_type_or_range_is_refused_by_name(
    trainer: str, name: str, value: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    given_, out = {**BASE[trainer], "reward_funcs": ["a.b"], name: value}, tmp_path / "run.yaml"
    assert convert(write(tmp_path / "any.yaml", given_), out, "--trainer", trainer) == 1
    error = capsys.readouterr().err
    assert f"any.yaml: {said}" in error
    assert not out.exists()


TRLX: dict[str, dict[str, Any]] = {
    "train": {"batch_size": 8, "total_steps": 100, "trainer": "AcceleratePPOTrainer"},
    "model": {"model_path": "gpt2"}, "optimizer": {"name": "adamw"},
    "method": {"name": "PPOConfig", "num_rollouts": 16},
}  # fmt: skip
TRLX_REFUSED = [
    ("train.total_steps", float("nan"), "train.total_steps = nan: must be a whole number of at least 1"),
    ("train.total_steps", "many", "train.total_steps = 'many': must be a whole number of at least 1"),
    ("train.batch_size", 0, "train.batch_size = 0: must be a whole number of at least 1"),
    ("train.seq_length", 10.5, "train.seq_length = 10.5: must be a whole number of at least 1"),
    ("train.seed", -1, "train.seed = -1: run.seed = -1: must lie in"),
    ("model.model_path", 5, "model.model_path = 5: model.path = 5: must be a text"),
    ("model.num_layers_unfrozen", -3, "model.num_layers_unfrozen = -3: model.unfrozen_layers = -3: must be at least 0"),
    ("method.gamma", 2, "method.gamma = 2: trainer.gamma = 2: must lie in [0, 1]"),
    ("method.ppo_epochs", -1, "method.ppo_epochs = -1: must be a whole number of at least 1"),
    ("method.cliprange_reward", "wide", "method.cliprange_reward = 'wide': must be a number"),
    ("method.gen_kwargs", [1], "method.gen_kwargs = [1]: must be a mapping of options"),
    ("method.gen_kwargs", {"temperature": "hot"}, "gen.temperature = 'hot': must be a number"),
    ("optimizer.kwargs", 3, "optimizer.kwargs = 3: must be a mapping of options"),
    ("optimizer.kwargs", {"lr": -1}, "trainer.optimizer.lr = -1: must lie in"),
    ("scheduler.kwargs", {"T_max": "long"}, "scheduler.kwargs.T_max = 'long': must be a number"),
]


@pytest.mark.parametrize(("name", "value", "said"), TRLX_REFUSED, ids=lambda value: str(value)[:40])
def test_a_value_of_trlx_of_a_wrong_type_or_range_is_refused_by_name(
    name: str, value: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    section, _, option = name.partition(".")
    values = {**TRLX, section: {**TRLX.get(section, {}), option: value}}
    assert convert(write(tmp_path / "trlx.yml", values), tmp_path / "run.yaml") == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run.yaml").exists()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"base_model": "gpt2", "rl": "magic"}, "rl = 'magic': must be one of dpo, ipo, kto"),
        ({"base_model": "gpt2", "adapter": "ia3"}, "adapter = 'ia3': must be lora, qlora or nothing"),
        ({"base_model": "gpt2", "datasets": "a.jsonl"}, "datasets = 'a.jsonl': must be a list of mappings"),
        ({"base_model": "gpt2", "sequence_len": 1.5}, "sequence_len = 1.5: must be a whole number"),
        ({"base_model": "gpt2", "micro_batch_size": 0}, "micro_batch_size = 0: must be at least 1"),
        ({"base_model": "gpt2", "special_tokens": {"pad_token": 3}}, "model.tokenizer.pad_token = 3: must be text"),
        ({"stage": "magic"}, "stage = 'magic': must be one of pt, sft, rm"),
        ({"stage": "sft", "finetuning_type": "some"}, "finetuning_type = 'some': must be lora, full or freeze"),
        ({"stage": "sft", "quantization_bit": 3}, "quantization_bit = 3: must be 4 or 8"),
        ({"stage": "sft", "cutoff_len": -5}, "cutoff_len = -5: data.max_sample_tokens = -5: must be at least 0"),
    ],
    ids=str,
)
def test_a_value_of_axolotl_or_llama_factory_that_has_no_meaning_is_refused_by_name(
    values: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert convert(write(tmp_path / "any.yaml", values), tmp_path / "run.yaml") == 1
    assert f"any.yaml: {said}" in capsys.readouterr().err


def test_nothing_is_saved_over_an_existing_file_when_a_value_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("run: {steps: 3}\n")
    assert convert(write(tmp_path / "any.yaml", {**BASE["sft"], "seed": -1}), tmp_path / "run.yaml") == 1
    assert (tmp_path / "run.yaml").read_text() == "run: {steps: 3}\n"


TEXTS = [
    "You help.\neval: {every: 7}", "a\n---\nb", "...", "---", "--- # no\n", "# no comment", "trailing # hash", ": ",
    "a: b", "- a\n- b", "'single'", '"double"', "it's \"both\"", "\ttab first", "a\tb\n\tc", "  two blanks\nthen none",
    "ends with blanks  ", "ends with a break\n", "ends with two\n\n", "\n\nbegins with two", "\n", " ", "", "null", "~",
    "true", "No", "1e5", "0x1F", "1_000", ".nan", "2026-01-01", "[a, b]", "{a: b}", "!!python/object:os.system ls",
    "*alias", "&anchor x", "%directive", "@at", "`tick`", "? question", "| pipe", "> fold", "<<", "=", "\\n and \\t",
    "back\\slash", "naïve", "漢字\nかな", "🙂 smile", "a\u2028b", "a\x85b", "\ufeffmark", "\u00a0", "a\r\nb", "a\rb",
    "\x1b[31mred", "\x00", "x" * 300, "word " * 60, "{%- for m in messages %}\n  {{ m.content }}\n{%- endfor %}",
    "{{ bos_token }}: {# c #}",
]  # fmt: skip


def check_text(text: str, folder: Path) -> None:
    """Convert a text as every option that is a text, and beside keys that are not converted."""
    source, out = folder / "any.json", folder / "run.yaml"
    places = {
        "system_prompt": "data.system_prompt", "chat_template": "model.tokenizer.chat_template",
        "eos_token": "model.tokenizer.eos_token", "dataset_prompt_column": "data.prompt_column",
    }  # fmt: skip
    template = "{{ 0 }}" + text
    values = dict.fromkeys(places, text) | {"chat_template": template, "unheard_of": text, "judge": [text], text: text}
    values |= {**BASE["grpo"], "report_to": "wandb", "wandb_project": text, "seed": 3}
    source.write_text(json.dumps(values), encoding="utf-8")
    assert convert(source, out, "--trainer", "grpo") == 0
    found = load_yaml(out)
    structure(TrainConfig, found)
    wanted = {path: template if name == "chat_template" else text for name, path in places.items()}
    if not text:
        wanted["data.system_prompt"] = ABSENT  # none
        assert found["loggers"] == ["console", "wandb"]
    else:
        assert found["loggers"][1] == {"name": "wandb", "project": text}
    assert {path: option_of(found, path) for path in wanted} == wanted
    assert sorted(found) == ["data", "gen", "loggers", "model", "run", "trainer"]
    assert found["run"]["seed"] == 3
    assert "every" not in str(found.get("eval"))


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: repr(text)[:24])
def test_any_text_is_read_as_it_was(text: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    check_text(text, tmp_path)
    said = capsys.readouterr().err
    assert all(re.match(r"(not converted|check): ", line) for line in said.splitlines())


PIECES = st.sampled_from(
    [
        *"\n\n\n \t:#-'\"{}[]|>&*!%@`,?~\r\x85\u2028\ufeff\u00a0aé漢🙂0\\",
        *("---", "...", "null", "true", "1e5", "<<", "  ", "a: b", "- a"),
    ]
)


@pytest.mark.slow
@settings(max_examples=100, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.lists(PIECES | st.characters(exclude_categories=["Cs"]), max_size=16).map("".join))
def test_random_texts_are_read_as_they_were(text: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    known = {*BASE["grpo"], "seed", "report_to"}
    if text not in known:
        check_text(text, tmp_path)
    capsys.readouterr()


def test_a_text_that_no_file_can_contain_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "any.json").write_text('{"assistant_only_loss": true, "eos_token": "\\ud800"}')
    assert convert(tmp_path / "any.json", tmp_path / "run.yaml") == 1
    assert "any.json: '\\ud800': has half of a surrogate pair" in capsys.readouterr().err


def test_a_key_that_stands_twice_is_named_if_its_values_are_equal_and_refused_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    file, out = tmp_path / "any.yaml", tmp_path / "run.yaml"
    file.write_text("assistant_only_loss: true\nseed: 3\nlogging_steps: 5\nseed: 3\n")
    assert convert(file, out) == 0
    assert "check: seed: the file has this key twice, with the same value\n" in capsys.readouterr().err
    assert load_yaml(out)["run"]["seed"] == 3
    file.write_text("assistant_only_loss: true\nseed: 3\nseed: 4\n")
    assert convert(file, out) == 1
    assert "any.yaml:3:1: is not valid YAML: duplicate key 'seed'" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--trainer", "grpo"]])
@pytest.mark.parametrize(
    "values",
    [
        {"data": {"train_files": "a.parquet"}, "actor_rollout_ref": {"rollout": {"n": 8}}, "trainer": {"nnodes": 1}},
        {"pretrain": "someone/base", "reward_pretrain": "someone/reward", "rollout_batch_size": 1024},
    ],
    ids=["verl", "openrlhf"],
)
def test_a_file_of_a_library_that_is_not_read_is_refused(
    values: dict[str, Any], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert convert(write(tmp_path / "any.yaml", values), tmp_path / "run.yaml", *words) == 1
    said = capsys.readouterr().err
    assert f"any.yaml: none of its keys ('{next(iter(values))}', " in said
    assert "is an argument of TRL; read are files of TRL, open-r1" in said


def test_a_token_is_not_written_beside_what_is_not_converted(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    values = {**BASE["sft"], "hub_token": "hf_abcdef", "my_api_key": "sk-abcdef", "env": {"WANDB_API_KEY": "abcdef"}}
    assert convert(write(tmp_path / "any.yaml", values), tmp_path / "run.yaml") == 0
    said = capsys.readouterr().err + (tmp_path / "run.yaml").read_text()
    assert "abcdef" not in said
    assert left_in(said) == ["env", "hub_token", "my_api_key"]


@pytest.mark.parametrize("value", [False, None, 0, "", "x", [], {"a": 1}], ids=str)
def test_an_unknown_key_is_named_whatever_its_value(value: Any, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert convert(write(tmp_path / "any.yaml", {**BASE["sft"], "unheard_of": value}), tmp_path / "run.yaml") == 0
    assert left_in(capsys.readouterr().err) == ["unheard_of"]
