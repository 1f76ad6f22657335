"""Old names of modules that have moved to a package: importing one still works, with a `DeprecationWarning`."""

from __future__ import annotations

import importlib
import sys
import warnings
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED: dict[str, str] = {
    "rlcore.checkpoints.parts": "rlcore_shard.parts",
    "rlcore.checkpoints.provenance": "rlcore.checkpoints.identity",
    "rlcore.checkpoints.replacement": "rlcore.checkpoints.durability",
    "rlcore.checkpoints.run_lock": "rlcore.checkpoints.claim",
    "rlcore.cli.compare_command": "rlcore_report.compare_command",
    "rlcore.cli.completion": "rlcore.cli.parser",
    "rlcore.cli.doctor": "rlcore_tools.doctor.doctor_command",
    "rlcore.cli.doctor_report": "rlcore_tools.doctor.doctor_report",
    "rlcore.cli.export_command": "rlcore_shard.export_command",
    "rlcore.cli.init_command": "rlcore_tools.init_command",
    "rlcore.cli.local_processes": "rlcore_shard.local_processes",
    "rlcore.cli.machine": "rlcore_tools.doctor.machine",
    "rlcore.cli.new_plugin": "rlcore_tools.new_plugin",
    "rlcore.cli.push": "rlcore_tools.hub.push_command",
    "rlcore.cli.report_command": "rlcore_report.report_command",
    "rlcore.cli.rollouts": "rlcore_report.rollouts",
    "rlcore.cli.screen": "rlcore.loggers.terminal",
    "rlcore.cli.show": "rlcore_tools.show_command",
    "rlcore.cli.trainer_command": "rlcore.cli.train",
    "rlcore.config.workload": "rlcore_plan.workload",
    "rlcore.data.answers": "rlcore_preferences.answers",
    "rlcore.data.chat": "rlcore_transformers.data.chat",
    "rlcore.data.data_sets": "rlcore_transformers.data.data_sets",
    "rlcore.data.labelled_answers": "rlcore_preferences.labelled_answers",
    "rlcore.data.limits": "rlcore_transformers.data.limits",
    "rlcore.data.logit_masks": "rlcore_transformers.data.logit_masks",
    "rlcore.data.offsets": "rlcore_transformers.data.offsets",
    "rlcore.data.pipelines": "rlcore_transformers.data.pipelines",
    "rlcore.data.preferences": "rlcore_preferences.preferences",
    "rlcore.data.prompts": "rlcore_transformers.data.prompts",
    "rlcore.data.rendered_turns": "rlcore_transformers.data.rendered_turns",
    "rlcore.data.rows": "rlcore_transformers.data.rows",
    "rlcore.data.sample_rewards": "rlcore_transformers.data.sample_rewards",
    "rlcore.data.samples": "rlcore_transformers.data.samples",
    "rlcore.data.sources": "rlcore_transformers.data.sources",
    "rlcore.data.streams": "rlcore_transformers.data.streams",
    "rlcore.data.token_rows": "rlcore_preferences.token_rows",
    "rlcore.data.tokens": "rlcore_transformers.data.tokens",
    "rlcore.data.torch_defaults": "rlcore.data.user_code",
    "rlcore.data.turns": "rlcore_transformers.data.turns",
    "rlcore.loggers.console_options": "rlcore.loggers.console",
    "rlcore.loggers.conversations": "rlcore.loggers",
    "rlcore.loggers.headline": "rlcore_report.tables",
    "rlcore.loggers.notebook": "rlcore_report.notebook",
    "rlcore.loggers.tables": "rlcore_report.tables",
    "rlcore.models": "rlcore_transformers.models",
    "rlcore.models.classifier": "rlcore_reward.classifier",
    "rlcore.models.decoding.block_cache": "rlcore_cpu.block_cache",
    "rlcore.models.decoding.packed_decoder": "rlcore_cpu.packed_decoder",
    "rlcore.models.decoding.prompt_states": "rlcore_cpu.prompt_states",
    "rlcore.models.decoding.shared_cache": "rlcore_cpu.shared_cache",
    "rlcore.models.dropout": "rlcore.dropout",
    "rlcore.models.manifest": "rlcore.checkpoints.manifest",
    "rlcore.models.padding_token": "rlcore_reward.padding_token",
    "rlcore.models.parallel_files": "rlcore_shard.parallel_files",
    "rlcore.models.q_heads": "rlcore_ilql.q_heads",
    "rlcore.models.scorer": "rlcore_reward.scorer",
    "rlcore.models.shards": "rlcore_shard.shards",
    "rlcore.models.step_scorer": "rlcore_reward.step_scorer",
    "rlcore.models.tensor_file": "rlcore.sharding.tensor_file",
    "rlcore.optim.builtin_optimizers": "rlcore_transformers.optimizers.builtin_optimizers",
    "rlcore.optim.meter": "rlcore.optim.batches",
    "rlcore.optim.optimizer_options": "rlcore_transformers.optimizers.optimizer_options",
    "rlcore.plugins.agreement": "rlcore.training.consensus",
    "rlcore.plugins.fence": "rlcore.plugins.switches",
    "rlcore.plugins.observer_objects": "rlcore.plugins.observers",
    "rlcore.plugins.published": "rlcore.plugins.builtin",
    "rlcore.protocols.optimizer_builders": "rlcore.protocols.algorithms",
    "rlcore.ranks.launched_sharding": "rlcore_shard.launched_sharding",
    "rlcore.ranks.launcher": "rlcore_shard.launcher",
    "rlcore.ranks.watchdog": "rlcore_shard.watchdog",
    "rlcore.reports": "rlcore_report",
    "rlcore.rewards.deadline": "rlcore.rewards.calls",
    "rlcore.rewards.forms": "rlcore.rewards.chosen_rewards",
    "rlcore.rewards.trl_functions": "rlcore_tools.trl_functions",
    "rlcore.sampling.active_rows": "rlcore_transformers.sampling.active_rows",
    "rlcore.sampling.draw": "rlcore_transformers.sampling.draw",
    "rlcore.sampling.next_token": "rlcore_transformers.sampling.next_token",
    "rlcore.sampling.record": "rlcore_transformers.sampling.record",
    "rlcore.sampling.row_seeds": "rlcore.sampling",
    "rlcore.sampling.sampler": "rlcore_transformers.sampling.sampler",
    "rlcore.sampling.sampler_checks": "rlcore.sampling",
    "rlcore.sampling.sampler_inputs": "rlcore_transformers.sampling.sampler_inputs",
    "rlcore.sampling.sampler_options": "rlcore_transformers.sampling.sampler_options",
    "rlcore.sampling.stop_sequences": "rlcore_transformers.sampling.stop_sequences",
    "rlcore.sharding.blocks": "rlcore_shard.blocks",
    "rlcore.sharding.divisible": "rlcore_shard.divisible",
    "rlcore.sharding.flat_state": "rlcore_shard.flat_state",
    "rlcore.sharding.fsdp": "rlcore_shard.fsdp",
    "rlcore.sharding.optimizer_state": "rlcore.sharding.whole",
    "rlcore.sharding.parallel_files": "rlcore_shard.parallel_files",
    "rlcore.sharding.shards": "rlcore_shard.shards",
    "rlcore.sharding.weight_files": "rlcore.sharding.tensor_file",
    "rlcore.sharding.zero": "rlcore_shard.zero",
    "rlcore.testing": "rlcore_testing",
    "rlcore.training.built_models": "rlcore.training.models",
    "rlcore.training.default_trainer": "rlcore.training.run_components",
    "rlcore.training.hub_upload": "rlcore_tools.hub.hub_upload",
    "rlcore.training.model_card": "rlcore_tools.hub.model_card",
    "rlcore.training.passed_objects": "rlcore.training.inputs",
    "rlcore.training.run_model": "rlcore.training.models",
    "rlcore.training.sampling_bias": "rlcore.training.rollout_stats",
    "rlcore.training.stale_weights": "rlcore.training.rollout_stats",
    "rlcore.training.store": "rlcore.training.rollout",
    "rlcore.training.trainer_callbacks": "rlcore_tools.trainer_callbacks",
    "rlcore.training.validation": "rlcore.optim.batches",
    "rlcore.types.messages": "rlcore.types.training_rows",
    "rlcore.types.policy_outputs": "rlcore.types.trajectories",
}
"""Old name of a module or package of the core → its new name; modules inside a package move with it."""


def new_name(name: str) -> str | None:
    """Return the present name of a module that has moved, None if it has not."""
    parts = name.split(".")
    for end in range(len(parts), 1, -1):
        if (moved := MOVED.get(".".join(parts[:end]))) is not None:
            return ".".join([moved, *parts[end:]])
    return None


class _Finder:
    """Finds modules by their old names; the entry of `sys.modules` is the module with the new name."""

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        """Return a spec for the old name of a module, None for any other name."""
        if not name.startswith("rlcore.") or new_name(name) is None:
            return None
        return ModuleSpec(name, self)  # type: ignore[arg-type]  # the two methods that importlib calls are here

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to importlib to create a module, which `exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """Import the module by its new name and put it in the place of `module`.

        Raises:
            ModuleNotFoundError: the package that it has moved to is not installed.
        """
        old, new = module.__name__, str(new_name(module.__name__))
        try:
            sys.modules[old] = importlib.import_module(new)
        except ModuleNotFoundError as error:
            package = new.partition(".")[0]
            if error.name != package:
                raise
            message = f"{old} has moved to {new}: pip install {package.replace('_', '-')}"
            raise ModuleNotFoundError(message, name=package) from None
        warnings.warn(f"{old} has moved: import {new}", DeprecationWarning, stacklevel=2)


def install() -> None:
    """Let imports by old names succeed in this process."""
    sys.meta_path.insert(0, _Finder())  # before the finder of files, which would load it twice
