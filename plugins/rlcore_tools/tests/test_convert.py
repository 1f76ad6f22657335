"""Tests of `rlcore convert`: values worked by hand from the meanings of both libraries; nothing is dropped silently."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainingArguments

from rlcore.cli import main
from rlcore.config import load_yaml, structure
from rlcore.plugins.registry import all_registries
from rlcore.settings import TrainConfig
from rlcore_grpo.config import GRPOConfig
from rlcore_grpo.constraints import check as check_options
from rlcore_tools.conversion.conversion import Conversion
from rlcore_tools.conversion.trl_arguments import convert_trl
from rlcore_tools.conversion.trlx_config import convert_trlx
from rlcore_tools.synonyms import synonyms

TRLX: dict[str, Any] = {
    "train": {
        "seq_length": 64, "epochs": 100, "total_steps": 1000, "batch_size": 32, "eval_interval": 128,
        "trainer": "AcceleratePPOTrainer", "pipeline": "PromptPipeline", "tracker": None, "checkpoint_dir": "out/walks",
    },
    "model": {"model_path": "gpt2", "num_layers_unfrozen": 2},
    "tokenizer": {"tokenizer_path": "gpt2", "truncation_side": "right"},
    "optimizer": {"name": "adamw", "kwargs": {"lr": 1e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 1e-6}},
    "scheduler": {"name": "cosine_annealing", "kwargs": {"T_max": 1e12, "eta_min": 3e-5}},
    "method": {
        "name": "PPOConfig", "num_rollouts": 128, "chunk_size": 64, "ppo_epochs": 4, "init_kl_coef": 0.2,
        "target": None, "gamma": 1, "cliprange_value": 0.2, "scale_reward": None, "cliprange_reward": 10,
        "gen_kwargs": {"max_new_tokens": 48, "top_k": 0.0, "do_sample": True},
    },
}  # fmt: skip
GRPO = {
    "model_name_or_path": "gpt2", "num_generations": 4, "per_device_train_batch_size": 8, "steps_per_generation": 4,
    "gradient_accumulation_steps": 2, "num_iterations": 2, "max_steps": 400, "beta": 0.04, "loss_type": "dr_grpo",
    "epsilon_high": 0.28, "use_vllm": True, "dataset_name": "openai/gsm8k", "dataset_config": "main",
}  # fmt: skip


def options_of(trainer: str) -> type:
    found = all_registries().trainers.get(trainer).config_class()
    assert found is not None
    return found


def flat(values: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(values, dict):
        return {path: values}
    return {
        key: each for name, part in values.items() for key, each in flat(part, f"{path}.{name}".lstrip(".")).items()
    }


def with_scheduler(**kwargs: float) -> Conversion:
    return convert_trlx({**TRLX, "scheduler": {"name": "cosine_annealing", "kwargs": kwargs}}, "ppo", options_of("ppo"))


def test_a_configuration_of_trlx_becomes_a_file_that_is_accepted(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "trlx.yml").write_text(json.dumps(TRLX), encoding="utf-8")
    assert main(["convert", str(tmp_path / "trlx.yml"), "--out", str(tmp_path / "run.yaml")]) == 0
    values = load_yaml(tmp_path / "run.yaml")
    structure(TrainConfig, values)
    found = flat(values)
    wanted = {
        "trainer.name": "ppo", "trainer.rollouts": 128, "trainer.batch_size": 32, "trainer.epochs": 4,
        "trainer.kl_coef": 0.2, "trainer.clip_value": 0.2, "trainer.score_min": -10.0, "trainer.score_scaling": "none",
        "trainer.target_kl": None, "trainer.optimizer.lr": 1e-4, "trainer.optimizer.scheduler": "constant",
        "trainer.optimizer.max_grad_norm": 0.0, "model.path": "gpt2", "model.unfrozen_layers": 2,
        "data.max_prompt_tokens": 16, "data.truncation_side": "right", "gen.max_new_tokens": 48, "gen.top_k": 0,
        "gen.batch_size": 64, "run.root": "out", "run.name": "walks",
        "run.steps": 63,  # 1000 optimizer steps in rounds of 4 * 128 / 32
        "eval.every": 8,
    }  # fmt: skip
    assert {name: found.get(name, "absent") for name in wanted} == wanted
    said = capsys.readouterr().err
    assert "not converted" not in said
    assert "steps are rounds of 16 optimizer steps" in said
    assert "check: run.steps: 63, from train.total_steps; train.epochs allows 100" in said


def test_converting_a_cosine_schedule_that_epochs_cut_short_reports_it() -> None:
    shorter = {**TRLX, "train": {**TRLX["train"], "epochs": 10}}
    shorter["scheduler"] = {"name": "cosine_annealing", "kwargs": {"T_max": 1000, "eta_min": 0}}
    conversion = convert_trlx(shorter, "ppo", options_of("ppo"))
    assert conversion.values["run"]["steps"] == 10
    assert any(line == "run.steps: 10, from train.epochs; train.total_steps allows 63" for line in conversion.notes)
    assert [line for line in conversion.left if line.startswith("scheduler.kwargs.T_max = 1000.0")]


@pytest.mark.parametrize(
    ("gen_kwargs", "wanted"),
    [
        (None, {"beta": 1.0, "top_k": 20, "max_new_tokens": 32}),
        ({"max_new_tokens": 9}, {"beta": 1.0, "top_k": 20, "max_new_tokens": 9}),
        ({"beta": 4, "top_k": 0, "max_new_tokens": 9}, {"beta": 4, "top_k": 0, "max_new_tokens": 9}),
        ({"beta": [0, 100], "top_k": 5, "max_new_tokens": 9}, {"beta": 1.0, "top_k": 5, "max_new_tokens": 9}),
    ],
)
def test_ilql_samples_with_the_defaults_of_trlx(gen_kwargs: Any, wanted: dict[str, Any]) -> None:
    """`generate` of trlX's AutoModelForCausalLMWithILQLHeads: beta=1, top_k=20, max_new_tokens=32."""
    method = {"tau": 0.7, **({} if gen_kwargs is None else {"gen_kwargs": gen_kwargs})}
    conversion = convert_trlx({"method": method}, "ilql", options_of("ilql"))
    structure(TrainConfig, conversion.values)
    assert conversion.values["gen"] == wanted
    swept = {name: value for name, value in (gen_kwargs or {}).items() if isinstance(value, list)}
    assert conversion.values.get("eval", {}).get("gen", {}) == swept
    written = [name for name in wanted if name not in (gen_kwargs or {}) or name in swept]
    notes = [line for line in conversion.notes if line.startswith("trlX's defaults of sampling are written")]
    assert notes == ([f"trlX's defaults of sampling are written for {', '.join(written)}"] if written else [])


TRLX_FIELDS = {
    "train": "total_steps seq_length epochs batch_size checkpoint_interval eval_interval pipeline trainer_kwargs "
    "project_name entity_name group_name checkpoint_dir rollout_logging_dir save_best save_optimizer "
    "resume_from_checkpoint tracker logging_dir tags seed minibatch_size",
    "model": "model_path model_arch_type num_layers_unfrozen peft_config model_extra_configs",
    "tokenizer": "tokenizer_path padding_side truncation_side tokenizer_extra_configs",
    "optimizer": "name kwargs",
    "scheduler": "name kwargs",
}
"""Fields of trlX's dataclasses, without those that name the trainer."""
METHOD_FIELDS = {
    "ppo": "ppo_epochs num_rollouts chunk_size init_kl_coef target horizon gamma lam cliprange cliprange_value vf_coef "
    "scale_reward ref_mean ref_std cliprange_reward gen_kwargs gen_experience_kwargs num_value_layers_unfrozen",
    "ilql": "tau gamma cql_scale awac_scale alpha beta steps_for_target_q_sync two_qs gen_kwargs",
    "sft": "gen_kwargs",
    "rft": "gen_kwargs start_percentile end_percentile n_improve_steps n_generations_per_prompt",
}
VALUES = {"peft_config": {"peft_type": "LORA", "r": 3}, "kwargs": {"lr": 7e-5}, "gen_kwargs": {"top_k": 7}}
VALUES |= {"gen_experience_kwargs": {"top_k": 7}, "rollout_logging_dir": "logs"}


@pytest.mark.parametrize("trainer", sorted(METHOD_FIELDS))
def test_no_field_of_trlx_is_dropped_silently(trainer: str) -> None:
    options, basis = options_of(trainer), {"train": {"batch_size": 5}, "optimizer": {"kwargs": {"lr": 6e-5}}}
    before = convert_trlx(basis, trainer, options)
    dropped = []
    for section, names in {**TRLX_FIELDS, "method": METHOD_FIELDS[trainer]}.items():
        for name in names.split():
            value: Any = VALUES.get(name, 70)
            given = {**basis, section: {**basis.get(section, {}), name: value}}
            after = convert_trlx(given, trainer, options)
            if after.values == before.values and len(after.left) == len(before.left):
                dropped.append(f"{section}.{name}")
    assert not dropped


def test_converting_a_cosine_schedule_that_does_not_end_with_the_run_reports_it() -> None:
    ending = with_scheduler(T_max=1000, eta_min=1e-5)
    assert ending.values["trainer"]["optimizer"]["scheduler"] == "cosine_with_min_lr"
    assert ending.values["trainer"]["optimizer"]["scheduler_options"] == {"min_lr": 1e-5}
    assert with_scheduler(T_max=1000, eta_min=0).values["trainer"]["optimizer"]["scheduler"] == "cosine"
    [line] = with_scheduler(T_max=500, eta_min=1e-5).left
    assert line.startswith("scheduler.kwargs.T_max = 500.0: schedules end with the run")


def test_arguments_of_grpo_are_rounds_of_whole_groups(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "grpo.json").write_text(json.dumps(GRPO), encoding="utf-8")
    assert main(["convert", str(tmp_path / "grpo.json"), "--out", str(tmp_path / "run.yaml")]) == 0
    found = flat(load_yaml(tmp_path / "run.yaml"))
    wanted = {
        "trainer.name": "grpo", "trainer.rollouts": 32, "trainer.minibatches": 2, "trainer.micro_batch_size": 8,
        "trainer.iterations": 2, "trainer.kl_coef": 0.04, "trainer.norm": "constant", "trainer.clip_high": 0.28,
        "trainer.optimizer.lr": 1e-6, "trainer.optimizer.betas": [0.9, 0.999], "gen.max_new_tokens": 512,
        "data.prompts": "openai/gsm8k:main:train",
        "run.steps": 100,  # 400 optimizer steps in rounds of 2 iterations * 2 minibatches
    }  # fmt: skip
    assert {name: found.get(name, "absent") for name in wanted} == wanted
    said = capsys.readouterr().err
    assert "not converted: use_vllm = True" in said
    assert "TRL's defaults are written for adam_beta1, adam_beta2, adam_epsilon, learning_rate" in said


TRL_FIELDS = {
    "gkd": "temperature lmbda beta max_new_tokens teacher_model_name_or_path teacher_model_init_kwargs disable_dropout "
    "seq_kd",
    "online_dpo": "reward_model_path max_new_tokens max_length temperature top_p top_k min_p repetition_penalty "
    "generation_kwargs cache_implementation missing_eos_penalty beta loss_type disable_dropout use_vllm "
    "vllm_model_impl vllm_structured_outputs_regex vllm_gpu_memory_utilization vllm_mode vllm_server_base_url "
    "vllm_server_host vllm_server_port vllm_server_timeout vllm_group_port vllm_tensor_parallel_size "
    "vllm_enable_sleep_mode ds3_gather_for_generation model_init_kwargs trust_remote_code reward_weights",
    "sft": "learning_rate model_init_kwargs trust_remote_code router_aux_loss_coef chat_template_path "
    "dataset_text_field dataset_kwargs dataset_num_proc eos_token max_length truncation_mode "
    "shuffle_dataset packing packing_strategy padding_free pad_to_multiple_of eval_packing "
    "completion_only_loss assistant_only_loss loss_type activation_offloading pad_token",
    "dpo": "learning_rate model_init_kwargs trust_remote_code router_aux_loss_coef disable_dropout "
    "dataset_num_proc max_length truncation_mode padding_free pad_to_multiple_of precompute_ref_log_probs "
    "precompute_ref_batch_size loss_type loss_weights ld_alpha f_divergence_type f_alpha_divergence_coef "
    "label_smoothing beta use_weighting discopop_tau activation_offloading sync_ref_model "
    "ref_model_mixup_alpha ref_model_sync_steps pad_token",
    "kto": "learning_rate train_sampling_strategy model_init_kwargs trust_remote_code router_aux_loss_coef "
    "disable_dropout dataset_num_proc max_length pad_to_multiple_of precompute_ref_log_probs "
    "precompute_ref_batch_size loss_type beta desirable_weight undesirable_weight activation_offloading "
    "sync_ref_model ref_model_mixup_alpha ref_model_sync_steps",
    "reward": "learning_rate model_init_kwargs trust_remote_code chat_template_path disable_dropout "
    "dataset_num_proc eos_token max_length pad_to_multiple_of center_rewards_coefficient "
    "activation_offloading pad_token",
    "grpo": "learning_rate model_init_kwargs trust_remote_code router_aux_loss_coef disable_dropout "
    "cast_lm_head_to_fp32 remove_unused_columns num_generations num_generations_eval "
    "max_completion_length ds3_gather_for_generation shuffle_dataset pad_to_multiple_of "
    "generation_batch_size steps_per_generation temperature top_p top_k min_p generation_kwargs "
    "chat_template_kwargs repetition_penalty cache_implementation use_vllm vllm_mode vllm_model_impl "
    "vllm_enable_sleep_mode vllm_structured_outputs_regex vllm_server_base_url vllm_server_host "
    "vllm_server_port vllm_server_timeout vllm_group_port vllm_gpu_memory_utilization "
    "vllm_max_model_length vllm_tensor_parallel_size beta num_iterations epsilon delta epsilon_high "
    "sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg "
    "importance_sampling_level reward_weights multi_objective_aggregation scale_rewards loss_type "
    "mask_truncated_completions sync_ref_model ref_model_mixup_alpha ref_model_sync_steps "
    "top_entropy_quantile entropy_coef use_adaptive_entropy entropy_coef_min entropy_coef_max "
    "entropy_coef_delta entropy_target max_tool_calling_iterations vllm_importance_sampling_correction "
    "vllm_importance_sampling_mode vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min "
    "off_policy_mask_threshold use_bias_correction_kl log_completions log_multimodal "
    "num_completions_to_print log_unique_prompts log_completions_hub_repo "
    "use_transformers_continuous_batching transformers_continuous_batching_config use_transformers_paged "
    "vllm_importance_sampling_cap",
    "rloo": "normalize_advantages reward_clip_range",
    "distillation": "teacher_model_name_or_path teacher_model_revision teacher_model_init_kwargs "
    "max_tool_calling_iterations",
    "model": "model_name_or_path model_revision dtype attn_implementation use_peft lora_r lora_alpha lora_dropout "
    "lora_target_modules lora_target_parameters lora_modules_to_save lora_task_type use_rslora use_dora "
    "load_in_8bit load_in_4bit bnb_4bit_quant_type use_bnb_nested_quant bnb_4bit_quant_storage",
    "script": "dataset_name dataset_config dataset_train_split dataset_test_split dataset_streaming "
    "ignore_bias_buffers",
}
"""Fields of TRL 1.16's configurations, of rloo and distillation those that grpo has not."""


def test_every_argument_of_trl_has_an_option_or_a_reason() -> None:
    known = synonyms("trl")
    names = {field.name for field in dataclasses.fields(TrainingArguments) if not field.name.startswith("_")}
    names |= {name for fields in TRL_FIELDS.values() for name in fields.split()}
    assert sorted(names - set(known)) == []
    assert [name for name in names if not (known[name].alternatives or known[name].how)] == []


LOSSES_OF_GRPO: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"loss_type": "luspo", "importance_sampling_level": "sequence"}, {"norm": "sum", "level": "sequence"}),
    ({"loss_type": "vespo", "vespo_k_neg": 2.5}, {"norm": "token", "surrogate": "vespo", "vespo_k_negative": 2.5}),
    ({"loss_type": "sapo", "sapo_temperature_pos": 2.0}, {"norm": "sequence", "surrogate": "sapo", "sapo_tau": 2.0}),
    ({"loss_type": "cispo", "epsilon_high": 5.0}, {"norm": "token", "surrogate": "cispo", "cispo_cap": 5.0}),
    ({"loss_type": "cispo"}, {"cispo_cap": 0.2}),  # TRL bounds the ratio itself by epsilon
    ({"beta": 0.1}, {"kl_coef": 0.1, "kl_ratio": True}),  # TRL's default
    ({"beta": 0.1, "use_bias_correction_kl": False}, {"kl_ratio": False}),
    ({"sync_ref_model": True, "beta": 0.1}, {"sync_ref_every": 512, "sync_ref_alpha": 0.6}),
    ({"multi_objective_aggregation": "normalize_then_sum"}, {"combine": "normalize_then_sum"}),
    ({"use_vllm": True}, {"is_correction": "sequence_mask", "is_high": 3.0}),
    ({"use_vllm": True, "vllm_importance_sampling_correction": False}, {"is_correction": "absent"}),
]


@pytest.mark.parametrize(("arguments", "wanted"), LOSSES_OF_GRPO, ids=str)
def test_the_losses_of_grpo_are_those_of_trl(arguments: dict[str, Any], wanted: dict[str, Any]) -> None:
    found = convert_trl(arguments, "grpo", options_of("grpo")).values["trainer"]
    assert {name: found.get(name, "absent") for name in wanted} == wanted
    check({**found, "name": "grpo"})


@pytest.mark.parametrize(
    ("arguments", "norm"), [({}, None), ({"loss_type": "grpo"}, "sequence"), ({"loss_type": "dr_grpo"}, "constant")]
)
def test_the_bonus_for_entropy_is_noted_where_it_is_no_mean_over_tokens(
    arguments: dict[str, Any], norm: str | None
) -> None:
    conversion = convert_trl({**arguments, "entropy_coef": 0.01}, "grpo", options_of("grpo"))
    assert conversion.values["trainer"]["entropy_coef"] == 0.01
    notes = [line for line in conversion.notes if line.startswith("trainer.entropy_coef")]
    said = f"trainer.entropy_coef: the bonus is part of the mean of trainer.norm, {norm}; TRL's is a mean over tokens"
    assert notes == ([] if norm is None else [said])
    assert not convert_trl(arguments, "grpo", options_of("grpo")).left


def test_the_number_of_answers_in_evaluations_is_converted() -> None:
    conversion = convert_trl({"num_generations_eval": 4}, "grpo", options_of("grpo"))
    assert conversion.values["eval"]["samples"] == 4
    assert not conversion.left


def check(trainer: dict[str, Any]) -> None:
    """Check that the trainer's options go together."""
    options = {name: value for name, value in trainer.items() if name != "name"}
    check_options(structure(GRPOConfig, options, where="test"), world=1)


@pytest.mark.parametrize(
    ("trainer", "wanted", "left"),
    [
        ("sft", {"model.neftune_alpha": 5.0, "model.compile": "inductor", "model.liger_kernel": True}, 0),
        ("dpo", {"model.neftune_alpha": 5.0, "trainer.dropout": True, "model.compile": "inductor"}, 0),
        ("grpo", {"model.compile": "inductor", "model.neftune_alpha": "absent"}, 1),
        ("reward", {"model.compile": "absent", "model.neftune_alpha": "absent"}, 3),
    ],
)
def test_noise_compilation_and_kernels_are_converted_where_the_trainer_takes_them(
    trainer: str, wanted: dict[str, Any], left: int
) -> None:
    given = {"neftune_noise_alpha": 5.0, "torch_compile": True, "use_liger_kernel": True}
    conversion = convert_trl(given, trainer, options_of(trainer))
    found = flat(conversion.values)
    assert {name: found.get(name, "absent") for name in wanted} == wanted
    assert len(conversion.left) == left


@pytest.mark.parametrize("loss", ["aot", "aot_unpaired"])
def test_losses_that_there_are_not_are_named_with_the_reason(loss: str) -> None:
    [line] = convert_trl({"loss_type": loss}, "dpo", options_of("dpo")).left
    assert line.startswith(f"loss_type = {loss}: it compares the sorted scores of a batch")


def test_the_defaults_of_arguments_without_a_counterpart_are_not_reported() -> None:
    given = {
        "truncation_mode": "keep_start",
        "vllm_mode": "colocate",
        "hub_strategy": "every_save",
        "log_level": "passive",
    }
    assert not convert_trl(given, "grpo", options_of("grpo")).left


@pytest.mark.parametrize("trainer", ["sft", "dpo", "reward", "grpo", "ppo"])
def test_no_argument_is_dropped_silently(trainer: str) -> None:
    options = options_of(trainer)
    before = convert_trl({}, trainer, options)
    assert not before.left
    for name in [*synonyms("trl"), "unheard_of"]:
        after = convert_trl(
            {name: 7, **({"use_peft": True} if name.startswith(("lora", "use_")) else {})}, trainer, options
        )
        changed = after.values != before.values or len(after.left) > len(before.left)
        assert changed, name


def test_a_value_of_another_type_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "any.yaml").write_text("packing: true\nmax_steps: many\n", encoding="utf-8")
    assert main(["convert", str(tmp_path / "any.yaml")]) == 1
    assert "a value has another type than that library's" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argument", "trainer"),
    [("loss_type: [sigmoid, sft]", "dpo"), ("loss_type: dr_grpo", "grpo"), ("loss_type: dft", "sft"),
     ("rpo_alpha: 1.0", "dpo"), ("reward_clip_range: [0, 1]", "grpo"), ("undesirable_weight: 1.5", "dpo")],
)  # fmt: skip
def test_an_argument_that_only_one_trainer_has_selects_that_trainer(
    tmp_path: Path, capsys: pytest.CaptureFixture, argument: str, trainer: str
) -> None:
    (tmp_path / "any.yaml").write_text(f"beta: 0.1\n{argument}\n", encoding="utf-8")
    assert main(["convert", str(tmp_path / "any.yaml")]) == 0
    assert f"name: {trainer}" in capsys.readouterr().out


RLOO = {"trainer.name": "grpo", "trainer.preset": "rloo", "trainer.level": "product",
        "trainer.norm": "sequence", "trainer.num_generations": 2,
        "trainer.kl_coef": 0.05, "gen.max_new_tokens": 512, "trainer.optimizer.lr": 1e-6}  # fmt: skip
KTO = {"trainer.name": "dpo", "trainer.loss": "kto", "trainer.beta": 0.1, "trainer.optimizer.lr": 1e-6,
       "data.max_sample_tokens": 1024}  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "trainer", "wanted"),
    [
        ({}, "rloo", RLOO),
        (
            {"beta": 0.1, "normalize_advantages": True},
            "RLOOTrainer",
            RLOO | {"trainer.kl_coef": 0.1, "trainer.scale": "batch"},
        ),
        ({}, "kto", KTO),
        ({"desirable_weight": 1.5}, None, KTO | {"trainer.desirable_weight": 1.5}),
        ({"loss_type": ["sigmoid_norm", "sft"]}, "dpo", {"trainer.loss.sigmoid_norm": 1.0, "trainer.loss.sft": 1.0}),
        (
            {"loss_type": ["sigmoid", "bco_pair"], "loss_weights": [0.8, 0.2]},
            "dpo",
            {"trainer.loss.sigmoid": 0.8, "trainer.loss.bco": 0.2},
        ),
    ],
)
def test_rloo_kto_and_sums_of_losses_are_converted(
    tmp_path: Path, arguments: dict[str, Any], trainer: str | None, wanted: dict[str, Any]
) -> None:
    """The defaults are those of TRL 1.16's `RLOOConfig` and `KTOConfig`."""
    (tmp_path / "any.json").write_text(json.dumps(arguments), encoding="utf-8")
    words = ["convert", str(tmp_path / "any.json"), "--out", str(tmp_path / "run.yaml")]
    assert main([*words, *([] if trainer is None else ["--trainer", trainer])]) == 0
    found = flat(load_yaml(tmp_path / "run.yaml"))
    assert {name: found.get(name, "absent") for name in wanted} == wanted
    assert "loss_weights" not in (tmp_path / "run.yaml").read_text()


def test_the_trainer_must_be_named_where_arguments_fit_several(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "any.yaml").write_text("learning_rate: 1.0e-5\nmodel_name_or_path: gpt2\n", encoding="utf-8")
    with pytest.raises(SystemExit):
        main(["convert", str(tmp_path / "any.yaml")])
    said = "fits several trainers: name one with --trainer (cpo, distill_prompts, distillation, dpo, gkd, grpo, "
    said += "kto, online_dpo, orpo, ppo, reward, rloo, sft)"
    assert said in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "any.yaml"), "--trainer", "dpo"]) == 0
    assert "name: dpo" in capsys.readouterr().out


def test_options_of_generate_become_options_of_gen_and_of_the_sampler_and_beams_are_refused() -> None:
    given = {"min_p": 0.1, "repetition_penalty": 1.0, "num_generations": 4, "generation_kwargs": {
        "top_k": 3, "repetition_penalty": 1.2, "do_sample": True, "num_beams": 4, "typical_p": 0.5,
    }}  # fmt: skip
    conversion = convert_trl(given, "grpo", options_of("grpo"))
    assert conversion.values["sampler"] == {"name": "default", "min_p": 0.1, "repetition_penalty": 1.2}
    assert conversion.values["gen"]["top_k"] == 3
    beams, typical = conversion.left
    assert beams.startswith("generation_kwargs.num_beams = 4: the sequences of a beam search are no samples of the")
    assert typical == "generation_kwargs.typical_p = 0.5: gen has no such option"


def test_tokens_that_generate_suppresses_or_favours_become_options_of_the_sampler() -> None:
    given = {"suppress_tokens": [3, 4], "bad_words_ids": [[7]], "sequence_bias": [[[5], -2.0], [[6], 1.5]]}
    conversion = convert_trl({"generation_kwargs": given}, "grpo", options_of("grpo"))
    assert conversion.values["sampler"] == {
        "name": "default", "forbidden_tokens": [3, 4, 7], "logit_bias": [[5, -2.0], [6, 1.5]],
    }  # fmt: skip
    assert not conversion.left
    words = {"bad_words_ids": [[7], [8, 9]], "sequence_bias": {(1, 2): 4.0}}
    conversion = convert_trl({"generation_kwargs": words}, "grpo", options_of("grpo"))
    assert "sampler" not in conversion.values
    assert [each.rpartition(": ")[2] for each in conversion.left] == [
        f"{several} has 2 tokens, and options are about one" for several in ([8, 9], [1, 2])
    ]


@pytest.mark.parametrize(("name", "said"), [
    ("num_beams", "the sequences of a beam search are no samples of the policy"),
    ("beam", "the sequences of a beam search are no samples of the policy"),
    ("suppress_tokens", "use sampler.forbidden_tokens"),
])  # fmt: skip
def test_arguments_of_generate_in_a_configuration_are_answered(
    name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"model: {{path: x}}\ntrainer: {{name: sft}}\ndata: {{samples: [a b]}}\ngen: {{{name}: 4}}\n")
    assert main(["train", str(file)]) != 0
    assert f"gen.{name}: no such option; {said}" in capsys.readouterr().err
