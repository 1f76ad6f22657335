"""Tests of the names of other libraries behind errors: every option that they name exists."""

from __future__ import annotations

import inspect

import pytest

import rlcore
from rlcore.config import structure
from rlcore.config.options import describe
from rlcore.errors import ConfigError, UnknownArgument, UnknownComponent
from rlcore.plugins.builtin import published
from rlcore.plugins.registry import all_registries
from rlcore.settings import RunConfig, SamplingConfig, TrainConfig
from rlcore_ppo.config import PPOConfig
from rlcore_reward.config import SequenceScorerConfig
from rlcore_sft.config import SFTConfig
from rlcore_tools.synonyms import component_names, synonyms
from rlcore_transformers.models.model_options import CausalLMConfig, TokenizerConfig
from rlcore_transformers.sampling.token_options import TokenOptions


def known_options() -> set[str]:
    """Return the dotted paths of all options of the core, of tokens, and of this repository's trainers."""
    found = {row.path for row in describe(TrainConfig)} | {"trainer.name", "model.path", "model.architecture"}
    for cls in (CausalLMConfig, SequenceScorerConfig):
        found |= {f"model.{row.path}" for row in describe(cls)}
    found |= {f"model.tokenizer.{row.path}" for row in describe(TokenizerConfig)} | {"model.tokenizer"}
    found |= {f"sampler.{row.path}" for row in describe(TokenOptions)}
    for component in all_registries().trainers:
        if component.name in published("trainers"):
            config = component.config_class()
            assert config is not None
            found |= {f"trainer.{row.path}" for row in describe(config)}
    return found


def test_every_option_that_an_error_names_exists() -> None:
    known, wrong = known_options(), []
    for library in ("trl", "trlx"):
        for name, synonym in synonyms(library).items():
            unknown = {path for paths in synonym.alternatives for path in paths} - known
            if unknown or not (synonym.alternatives or synonym.how):
                wrong.append(f"{library}: {name}: {sorted(unknown) or 'nothing in its place'}")
    assert not wrong, "\n".join(wrong)


def test_every_trainer_that_an_error_names_is_published_with_its_options() -> None:
    trainers = {component.name: component for component in all_registries().trainers}
    for name, synonym in synonyms("trainers").items():
        assert synonym.ours in published("trainers"), name
        options = [part.split(": ") for part in synonym.how.split(", ") if part]
        structure(trainers[synonym.ours].config_class(), dict(options))


def test_every_optimizer_and_schedule_that_an_error_names_is_registered() -> None:
    known = all_registries()
    for registry in (known.optimizers, known.schedulers):
        names = component_names(registry.kind)
        assert len(names) > 8
        for name, synonym in names.items():
            assert synonym.ours in registry, name


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("optimizers", "adamw_torch", "Use optimizer 'adamw'"),
        ("optimizers", "AdamW", "Use optimizer 'adamw'"),
        ("optimizers", "adamw_bnb_8bit", "Use optimizer 'adamw_8bit'"),
        ("schedulers", "cosine_with_warmup", "Use scheduler 'cosine' with trainer.optimizer.warmup_steps"),
        ("schedulers", "constant_with_warmup", "Use scheduler 'constant'"),
        ("schedulers", "cosin", "Did you mean 'cosine'"),
        ("trainers", "rloo", "Use trainer 'grpo' with preset: rloo"),
    ],
)
def test_names_of_other_libraries_for_components_are_replaced(kind: str, name: str, expected: str) -> None:
    with pytest.raises(UnknownComponent, match=expected):
        getattr(all_registries(), kind).get(name)


@pytest.mark.parametrize(
    ("section", "path", "name", "expected"),
    [
        (TrainConfig, "", "steps", r"x: steps: no such option; did you mean run\.steps\?"),
        (SFTConfig, "trainer", "lr", r"trainer\.lr: no such option; did you mean trainer\.optimizer\.lr\?"),
        (SFTConfig, "trainer", "steps", r"did you mean run\.steps\?"),
        (RunConfig, "run", "top_k", r"run\.top_k: no such option; use gen\.top_k"),
        (RunConfig, "run", "system_prompt", r"run\.system_prompt: no such option; did you mean data\.system_prompt\?"),
        (RunConfig, "run", "stepps", r"did you mean 'steps'\?"),
        (RunConfig, "run", "keep_lst", r"there are name, root"),
        (
            all_registries().trainers.get("dpo").config_class(),
            "trainer",
            "loss_weights",
            r"use trainer\.loss \(a mapping from each loss to its weight",
        ),
    ],
)
def test_an_option_of_another_section_is_found_by_its_last_name(
    section: type, path: str, name: str, expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        structure(section, {name: 1}, where="x", path=path)


@pytest.mark.parametrize(
    ("section", "name", "expected"),
    [
        (TrainConfig, "learning_rate", "learning_rate: no such option; use trainer.optimizer.lr"),
        (SFTConfig, "learning_rate", "use trainer.optimizer.lr"),
        (PPOConfig, "beta", r"use trainer.kl_coef \("),
        (PPOConfig, "init_kl_coef", "use trainer.kl_coef"),
        (SFTConfig, "beta", "no such option; there are batch_size"),
        (PPOConfig, "max_completion_length", "use gen.max_new_tokens"),
        (SamplingConfig, "temprature", "did you mean 'temperature'"),
        (TrainConfig, "deepspeed", "use run.shard"),
        (TrainConfig, "use_vllm", "no such option; responses are sampled from the policy itself"),
        (TrainConfig, "output_dir", r"use run.root and run.name \(output_dir: runs/first is"),
    ],
)
def test_the_error_of_an_unknown_option_names_the_one_of_that_meaning(section: type, name: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        structure(section, {name: 1})


def test_the_error_for_an_unknown_argument_shows_how_to_pass_it() -> None:
    message = r'train: max_steps: no such argument; use run.steps \(.*\); as an argument: run={"steps": ...}'
    with pytest.raises(UnknownArgument, match=message):
        rlcore.train("gpt2", max_steps=3)
    with pytest.raises(UnknownArgument, match=r"steps: no such .*did you mean run.steps\?; .*run={\"steps\": ...}"):
        rlcore.train("gpt2", steps=3)
    with pytest.raises(UnknownArgument, match=r"train: sampels: no such argument; did you mean 'samples'\?$"):
        rlcore.train("gpt2", sampels=[])
    with pytest.raises(TypeError, match=r"train_dataset: .*as an argument: samples=... or prompts=..."):
        rlcore.train("gpt2", train_dataset=[])
    assert "reward_fn" in inspect.signature(rlcore.train).parameters
