"""At which depth tests run that take long: by day with `.ci/run`, or only in `make test-all`.

`make test-times` says which tests these are. A test goes to the night if another one checks its law by day, for another
model, trainer, library or number of processes; the comment of each group below says which.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

SLOW_LAWS = {
    "a_bad_number_on_one_rank_stops_the_run_or_is_counted", "a_bad_number_stops_the_run_or_is_counted",
    "a_spawned_worker_has_the_same_components", "an_accepted_change_has_its_effect",
    "another_process_plays_the_same_episode", "another_process_same_numbers", "divided_weights_equal_whole_ones",
    "frequencies_match_the_policy", "help_is_light", "host_and_device_do_not_mix", "hundreds_of_batches_are_kept",
    "it_learns", "options_are_light", "registering_again_gives_the_same", "resume_is_exact",
    "the_import_changes_nothing", "the_import_is_light", "the_import_is_quick", "two_processes_equal_one",
    "two_processes_make_the_steps_of_one",
}  # fmt: skip
"""Laws of the kit that start processes, or train several times: `make test` leaves them out."""
SLOW_LAWS_OF_FURTHER_TRAINERS = {
    "checkpoints_change_nothing", "evaluation_changes_nothing", "events_come_in_order", "frozen_parameters_stay",
    "micro_batches_change_nothing", "padding_changes_nothing", "same_seed_same_numbers",
    "splitting_a_batch_changes_nothing", "state_dict_is_plain", "stop_is_honoured_at_a_yield",
}  # fmt: skip
"""Laws that train: `make test` checks them for `TRAINERS_OF_EVERY_RUN` alone."""
TRAINERS_OF_EVERY_RUN = {"sft", "ppo", "grpo", "dpo"}
NIGHTLY_LAWS = {
    "a_bad_number_on_one_rank_stops_the_run_or_is_counted": ("sft", "ppo", "grpo"),
    "an_accepted_change_has_its_effect": ("sft",),
    "divided_weights_equal_whole_ones": ("sft", "ppo"),
    "host_and_device_do_not_mix": ("grpo",),
    "two_processes_make_the_steps_of_one": ("none", "fsdp", "zero3"),
}
"""Law → the components for which continuous integration checks it; for others, and for models of T5, it runs at night.

Other laws cover them by day: a bad number in one process, equal results of one process and of two, and for accepted
changes `tests/laws/test_changed_options.py`.
"""

SLOW = {
    "plugins/rlcore_dpo/tests/test_pairs.py": ["test_a_resumed_run_equals_an_uninterrupted_one"],
    "plugins/rlcore_engines/tests/asynchronous/test_rounds_ahead.py": [
        "test_the_round_of_a_step_is_a_sample_of_the_weights_so_many_steps_before"
    ],
    "plugins/rlcore_environments/tests/test_curriculum.py": [
        "test_a_run_with_a_curriculum_goes_on_exactly_where_it_was_stopped"
    ],
    "plugins/rlcore_report/tests/test_verdict_rates.py": [
        "test_no_learning_rate_is_advised_that_is_more_than_ten_times_another_one"
    ],
    "plugins/rlcore_tools/tests/plan/test_plan.py": ["test_no_weights_are_read_neither_the_models_nor_its_critics"],
    "plugins/rlcore_tools/tests/plan/test_serving.py": [
        "test_rounds_ahead_have_copies_of_the_weights_unless_the_sampler_has_submit"
    ],
    "plugins/rlcore_tools/tests/test_doctor.py": ["test_a_configuration_with_errors_ends_in_an_exit_status_of_one"],
    "plugins/rlcore_vision/tests/test_vision_more_trainers.py": ["test_a_trainer_moves_the_encoder"],
    "tests/cli/test_plugin_commands.py": ["test_an_unusable_registration_of_a_command_breaks_only_its_plugin"],
    "tests/docs/test_generated.py": ["test_generated_pages_are_up_to_date"],
    "tests/docs/test_site.py": ["test_a_broken_link_or_anchor_fails_the_build"],
    "tests/e2e/test_provenance.py": ["test_a_registered_reward_is_recorded_whatever_its_form"],
    "tests/laws/test_known_defects_of_ranks.py": ["test_a_folder_of_several_safetensors_files_is_a_model"],
    "tests/laws/test_known_defects_of_tokens.py": ["test_padding_with_eos_does_not_change_training"],
    "tests/models/speed/test_fused_logprobs.py": ["test_gradients_equal_finite_differences"],
    "tests/models/test_save_load.py": ["test_plain_transformers_loads_a_saved_policy"],
    "tests/plugins/test_disturbances.py": [
        "test_text_printed_by_a_plugin_is_not_part_of_json_output",
        "test_a_reason_with_characters_that_the_output_cannot_encode_is_shown",
    ],
    "tests/sampling/test_sampling_refill.py": [
        "test_refilled_sampling_gives_the_same_samples_for_every_block_width"
    ],
    "tests/sft/test_trainer.py": ["test_eos_is_learned_and_the_loss_falls"],
    "tests/test_left_out.py": ["test_a_command_of_a_package_that_is_left_out_names_the_package"],
    "tests/training/test_overlapped_runs.py": ["test_scoring_during_sampling_does_not_change_training_or_files"],
    "tests/world/test_recipes.py": ["test_a_published_recipe_becomes_a_configuration_that_a_run_accepts"],
}  # fmt: skip
"""File → tests that `make test` leaves out, besides those with the mark `slow`."""

NIGHTLY: dict[str, dict[str, tuple[str, ...]]] = {
    # The laws of shardings, and those of trainers on two processes.
    "tests/e2e/test_zero.py": {
        "test_zero_on_several_ranks_learns_what_one_process_learns": (),
        "test_each_of_two_ranks_keeps_half_of_what_its_stage_divides": ("zero3",),
    },
    "tests/e2e/test_sharding.py": {
        "test_a_checkpoint_of_which_a_rank_is_killed_or_cannot_write_its_part_leaves_the_one_before": (),
        "test_each_of_two_ranks_of_a_machine_keeps_half_of_the_weights_and_moments": ("2-2",),
        "test_fsdp_on_two_ranks_learns_what_one_process_learns": (),
    },
    "tests/e2e/test_tensor_parallel.py": {
        "test_two_ranks_that_divide_layers_learn_and_log_what_one_process_does": (),
    },
    "tests/e2e/test_adapters.py": {
        "test_two_processes_train_the_adapter_that_one_does": (),
        "test_resume_is_no_interruption": ("memory-ppo",),
    },
    "tests/e2e/test_plain_torch.py": {
        "test_a_recurrent_policy_divided_among_two_ranks_learns_what_one_process_learns_also_when_it_resumes": (),
    },
    "tests/e2e/test_default_rates.py": {"test_two_ranks_have_the_learning_rate_of_the_whole_model": ("fsdp",)},
    "tests/e2e/test_rank_failures.py": {
        "test_a_rank_that_is_killed_ends_the_others_long_before_the_limit_with_a_ranks_error": ("backward-3-0-none",),
    },
    "tests/e2e/test_world_sizes.py": {
        "test_the_size_of_pickled_messages_does_not_depend_on_the_number_of_rows": (),
        "test_every_rank_receives_the_rows_of_all_in_their_order": ("3",),
    },
    "tests/e2e/test_local_processes.py": {
        "test_ctrl_c_saves_and_a_second_one_stops_all_processes_at_once": (),  # tests/e2e/test_ranks.py stops ranks
    },
    "plugins/rlcore_environments/tests/test_episode_ranks.py": {
        "test_two_processes_play_and_learn_as_one": ("grpo",),
    },
    "plugins/rlcore_engines/tests/vllm/test_sampler_runs.py": {"test_two_processes_sample_the_tokens_of_one": ()},
    "plugins/rlcore_engines/tests/vllm/test_weight_broadcast.py": {
        "test_divided_weights_are_gathered_and_sent_by_process_0": (),
    },
    "plugins/rlcore_engines/tests/ray/test_with_ray.py": {
        "test_actors_sample_as_one_process_also_when_one_is_killed_in_mid_round": (),
        "test_all_ranks_start_again_after_one_has_failed_and_not_more_often_than_allowed": (),
        "test_ctrl_c_is_passed_on_and_a_second_one_ends_the_ranks": ("saves",),
    },
    "plugins/rlcore_dpo/tests/test_online_dpo.py": {
        "test_the_laws_hold_with_an_adapter": ("resume_is_exact",),
        "test_two_processes_equal_an_independent_implementation": (),
        "test_training_equals_an_independent_implementation": ("two answers",),
    },
    "tests/laws/test_gradient_noise.py": {
        "test_a_law_up_to_rounding_holds_with_noise_in_the_gradients_of_one_run": ("sft", "reward", "ppo", "ilql"),
    },
    # Two processes equal one, and one equals an independent implementation.
    "tests/testing/test_oracle_laws.py": {"test_two_processes_equal_an_independent_implementation": ("ppo",)},
    "plugins/rlcore_grpo/tests/test_oracle.py": {
        "test_two_processes_equal_an_independent_implementation": (),
        "test_training_equals_an_independent_implementation": ("KL in the loss", "minibatches", "no preset"),
    },
    "plugins/rlcore_reward/tests/test_oracle.py": {"test_two_processes_equal_an_independent_implementation": ()},
    "plugins/rlcore_distill/tests/test_oracle.py": {"test_two_processes_equal_an_independent_implementation": ()},
    "plugins/rlcore_reinforce/tests/test_oracle.py": {"test_two_processes_equal_an_independent_implementation": ()},
    "plugins/rlcore_dpo/tests/test_oracle.py": {
        "test_two_processes_equal_an_independent_implementation": (),
        "test_training_equals_an_independent_implementation": ("sigmoid", "kto", "a reference in every step"),
    },
    # Resuming: the law for each trainer.
    "tests/e2e/test_resume.py": {"test_resume_is_no_interruption": ("ppo_module", "sft_config")},
    "tests/laws/test_restored_fields.py": {"test_every_field_of_a_trainer_matters_in_a_resumed_run": ("sft",)},
    "tests/e2e/test_optimizers.py": {"test_a_resumed_run_equals_an_uninterrupted_one": ("adafactor",)},
    "plugins/rlcore_environments/tests/test_interruptions.py": {
        "test_a_run_that_ends_in_the_middle_of_a_round_of_episodes_goes_on_exactly": ("killed",),
    },
    "tests/checkpoints/test_checkpoints_crashes.py": {
        "test_a_crash_anywhere_leaves_a_whole_checkpoint_and_no_litter": ("fill-1-first", "renamed-1-second"),
    },
    # Models of T5 and BART: tests/models/test_seq2seq.py, and those cases of the laws that stay.
    "tests/testing/test_encoder_decoders.py": {
        "test_encoder_decoders_keep_the_law": (
            "sft-t5", "ppo-t5-micro", "ppo-t5-padding", "ppo-t5-every", "ilql-bart-micro",
        ),
    },
    "tests/laws/test_known_defects_of_tokens.py": {
        "test_a_policy_learns_eos_from_demonstrations": ("llama-pad is eos-sft", "gpt2-pad-ilql", "t5-pad-sft"),
        "test_a_policy_learns_to_sample_eos_if_short_responses_are_rewarded": ("gpt2",),
    },
    "tests/laws/test_known_defects_of_runs.py": {
        "test_the_best_checkpoint_is_kept_under_a_sweep_by_any_metric": (
            "ppo-eval/chars-min", "sft-eval/reward/mean-max",
        ),
    },
    # Trainers of which each kind of model, library or phase has one by day.
    "plugins/rlcore_vision/tests/test_vision_walk.py": {
        "test_a_family_is_trained": ("gemma3-ppo", "idefics3-sft", "qwen2_vl-grpo", "llava-reward", "gemma3-dpo"),
    },
    "tests/e2e/test_profile_shares.py": {
        "test_named_phases_hold_nearly_all_of_a_step_whatever_the_trainer": ("ppo", "sft"),
    },
    "plugins/rlcore_environments/tests/verifiers/test_library.py": {"test_grpo_trains_two_steps": ()},
    "plugins/rlcore_environments/tests/textarena/test_training.py": {"test_grpo_trains_two_steps": ("none",)},
    "plugins/rlcore_ddpo/tests/test_loading.py": {
        "test_only_building_a_pipeline_imports_diffusers_without_messages_about_optional_packages": (),
    },
    "plugins/rlcore_vision/tests/test_vision_reward.py": {
        "test_without_its_package_the_reward_names_the_extra_before_a_model_is_loaded": (),
    },
    "plugins/rlcore_loggers/tests/test_wandb.py": {  # the laws of loggers hold for wandb by day
        "test_every_metric_is_in_the_history_at_its_own_step": (),
        "test_a_run_whose_wandb_cannot_start_does_not_begin": (),
    },
    # Examples, of which tests/docs/test_snippets.py runs the documented ones.
    "tests/examples/test_scripts.py": {
        "test_randomwalks_rft_prints_its_result_and_the_number_of_samples": (),
        "test_the_reviews_example_trains_a_model_on_a_file": ("made up",),
        "test_the_ddpo_example_prints_the_rise_of_the_reward": (),
    },
    "plugins/rlcore_vision/tests/test_shapes_example.py": {
        "test_the_example_of_reward_models_trains_a_policy_with_its_scores": (),
    },
    "plugins/rlcore_tools/tests/new_plugin/test_generated.py": {
        "test_the_trainer_template_is_in_step_with_the_published_package": (),
    },
    # Pages as pictures; their texts and buttons are tested by day.
    "plugins/rlcore_report/tests/test_browser.py": {"test_a_report_opens_in_four_views": ()},
    "plugins/rlcore_report/tests/test_dashboard_browser.py": {"test_every_page_opens_in_four_views": ()},
    "plugins/rlcore_rewards/tests/human/test_browser.py": {"test_the_page_opens_in_four_views": ()},
    "plugins/rlcore_report/tests/test_dashboard_list.py": {
        "test_a_thousand_runs_are_there_with_one_request_and_drawn_as_far_as_they_are_in_sight": (),
    },
    # Further cases of one law.
    "tests/laws/test_known_defects_of_training.py": {
        "test_the_reference_is_the_model_before_training": (
            "gpt2-all layers", "llama-a layer", "t5-all", "gpt2-an adapter",
        ),
        "test_splitting_a_batch_does_not_change_the_gradient": ("gpt2-ilql", "llama-ppo", "t5-sft", "gpt2-rft"),
    },
    "tests/ppo/test_rollout.py": {
        "test_the_reported_kl_is_that_of_the_response_tokens": (
            "gpt2-full-{'t", "llama-k1-{}", "gpt2-k2-{'t", "llama-k3-{}",
        ),
    },
    "tests/models/test_compiled.py": {
        "test_compiled_blocks_have_the_log_probs_and_gradients_of_the_model": ("lora",),
    },
    "tests/models/speed/test_allocation.py": {"test_a_malloc_threshold_of_the_environment_is_kept": ()},
    "plugins/rlcore_tools/tests/plan/test_heap.py": {
        "test_with_a_fixed_threshold_there_are_no_holes": (),
        "test_holes_in_the_heap_are_counted_in_the_plan_without_allocating_them": (),
    },
    "plugins/rlcore_tools/tests/plan/test_plan.py": {
        "test_the_planned_memory_is_what_tensors_take_in_the_run": ("ppo", "sft"),
    },
    "plugins/rlcore_tools/tests/plan/test_decoders.py": {
        "test_a_plan_samples_with_the_decoder_that_the_run_has": ("24-24-16", "64-64-16"),
    },
    "plugins/rlcore_tools/tests/test_convert_trl_fields.py": {"test_no_argument_is_dropped_silently": ("grpo", "sft")},
    "plugins/rlcore_rewards/tests/human/test_messages.py": {"test_the_keys_that_are_named_score": ("0-10", "0-2-0.5")},
    "plugins/rlcore_vision/tests/test_vision_training.py": {
        "test_a_trainer_moves_the_encoder_and_resumes_exactly": ("grpo", "sft"),
    },
    "plugins/rlcore_vision/tests/test_vision_scorer.py": {"test_resuming_equals_not_having_stopped": ()},
    "plugins/rlcore_engines/tests/asynchronous/test_rounds_ahead.py": {
        "test_resuming_equals_not_having_stopped": ("ppo-2", "grpo-1"),
        "test_two_processes_learn_as_one_and_go_on_as_one": (),
    },
    "plugins/rlcore_environments/tests/test_families.py": {
        "test_an_adapter_is_trained_on_the_policys_turns_within_one_rendering_of_the_dialogue": (
            "gpt2-rft", "llama-grpo", "qwen3-ppo",
        ),
    },
    "plugins/rlcore_transformers/tests/disk_store/test_training.py": {
        "test_rollouts_that_wait_through_a_checkpoint_are_learned_from_after_it": (),
    },
    "plugins/rlcore_distill/tests/test_teacher_reward.py": {"test_training_raises_the_log_ratio": ("grpo",)},
    "tests/e2e/test_sampling_options.py": {
        "test_the_best_checkpoint_of_a_sweep_may_be_chosen_by_any_metric": ("one of a sweep", "least of a sweep"),
    },
    "tests/e2e/test_reward_timeouts.py": {
        "test_a_reward_that_never_returns_ends_the_process_with_its_name_and_the_batch": ("stopped_and_hanging",),
    },
    "tests/e2e/test_profiling.py": {
        "test_the_phases_add_up_to_the_steps_as_another_clock_has_them": ("ppo",),
    },
    "tests/training/test_token_options_in_runs.py": {
        "test_the_laws_of_trainers_hold_with_these_options": ("resume_is_exact",),
    },
    "tests/training/test_overlapped_runs.py": {
        "test_scoring_during_sampling_on_two_ranks_does_not_change_training_or_files": (),
    },
    "tests/training/test_signals.py": {
        "test_one_signal_finishes_the_step_with_one_clear_line": ("15",),
        "test_a_second_signal_ends_at_once": ("2",),
    },
    "tests/test_left_out.py": {
        "test_a_run_with_an_environment_or_tools_names_the_package_that_plays_episodes": (),
    },
    "tests/mutation/test_mutate.py": {"test_a_change_that_a_test_notices_is_caught_and_another_survives": ()},
    # The tools of the tests themselves.
    "tests/warm/test_warm_python.py": {
        "test_a_forked_process_equals_one_that_python_started": ("message", "killed"),
        "test_an_interrupted_test_leaves_no_process_running": (),
    },
    "tests/testing/test_worker.py": {
        "test_processes_of_one_run_of_xdist_share_a_worker": (),
        "test_a_package_that_differs_in_the_worker_gets_a_process_of_its_own": ("registered",),
    },
    "tests/testing/test_wrong_components.py": {
        # A fault of a law that starts processes; the law itself holds for right components by day.
        "test_a_wrong_component_breaks_the_law": (
            "~two_processes", "~divided_weights", "~an_accepted_change", "~on_one_rank", "~the_import_is",
            "~help_is_light", "~host_and_device", "~options_are_light", "~registering_again",
        ),
    },
    "tests/plugins/test_isolation.py": {
        "test_a_failing_plugin_disturbs_nothing_and_is_reported_in_one_line": (
            "entry point to no attribute", "raises at import", "one name in two dists", "disabled by variable",
        ),
    },
    "tests/e2e/test_plugins_everywhere.py": {
        "test_a_plugin_left_out_of_a_run_is_never_imported_in_it": (),
    },
}  # fmt: skip
"""File → test → parts of the names of those of its cases that run by day; none, if the whole test runs at night.

A part that begins with ~ is of cases that run at night, and the others run by day.
"""


def mark(item: pytest.Function) -> None:
    """Give a test the marks `slow` and `nightly` by the tables above."""
    file, test = item.nodeid.partition("::")[0], item.originalname
    if test in SLOW.get(file, ()):
        item.add_marker(pytest.mark.slow)
    parts = NIGHTLY.get(file, {}).get(test)
    if parts is not None and not runs_by_day(item.callspec.id if hasattr(item, "callspec") else "", parts):
        item.add_marker(pytest.mark.nightly)


def runs_by_day(case: str, parts: Iterable[str]) -> bool:
    """Return whether a case of a test runs by day, by the parts of names of the table `NIGHTLY`."""
    of_night = [part[1:] for part in parts if part.startswith("~")]
    if of_night:
        return not any(part in case for part in of_night)
    return any(part in case for part in parts)


def by_day(cases: Iterable[Any], chosen: Iterable[Any]) -> list[Any]:
    """Return all cases of a test, with the mark `nightly` on those that are not chosen.

    Args:
        cases: the values of `pytest.mark.parametrize`; a case is a tuple if there are several names.
        chosen: cases, or the first values of tuples, that stand for the others by day.
    """
    table, day = list(cases), list(chosen)
    first = [case[0] if isinstance(case, tuple) else case for case in table]
    if unknown := [each for each in day if each not in table and each not in first]:
        raise ValueError(f"no case of this table is {unknown}")
    return [
        pytest.param(*(case if isinstance(case, tuple) else [case]), marks=[] if is_chosen else [pytest.mark.nightly])
        for case, start in zip(table, first, strict=True)
        for is_chosen in [case in day or start in day]
    ]
