"""Tests that `rlcore convert` drops no argument of TRL silently, and reports no default."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from converted_options import example_of, options_of
from transformers import TrainingArguments

from rlcore.cli import main
from rlcore_tools.conversion.trl_arguments import convert_trl
from rlcore_tools.synonyms import synonyms

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


def test_the_defaults_of_arguments_without_a_counterpart_are_not_reported() -> None:
    given = {
        "truncation_mode": "keep_start",
        "vllm_mode": "colocate",
        "hub_strategy": "every_save",
        "log_level": "passive",
    }
    assert not convert_trl(given, "grpo", options_of("grpo")).left


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["sft", "dpo", "reward", "grpo", "ppo"])
def test_no_argument_is_dropped_silently(trainer: str) -> None:
    options = options_of(trainer)
    before = convert_trl({}, trainer, options)
    assert not before.left
    for name in [*synonyms("trl"), "unheard_of"]:
        special = {
            "remove_unused_columns": trainer == "grpo",
            "completion_only_loss": trainer != "sft",
        }  # not the defaults
        value = special.get(name, example_of(name))
        after = convert_trl(
            {name: value, **({"use_peft": True} if name.startswith(("lora", "use_")) else {})},
            trainer,
            options,
        )
        assert after != before, name  # in values, notes, or what is left or refused


def test_a_value_of_another_type_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "any.yaml").write_text("packing: true\nmax_steps: many\n", encoding="utf-8")
    assert main(["convert", str(tmp_path / "any.yaml")]) == 1
    assert "max_steps = 'many': must be a number" in capsys.readouterr().err
