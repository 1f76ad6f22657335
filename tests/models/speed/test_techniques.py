"""Tests of the table of speed techniques: each can be disabled without changing the results."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from rlcore.config import structure
from rlcore.config.options import fields, section_class
from rlcore.errors import ConfigError
from rlcore.sampling import sample
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt
from rlcore_ilql.config import q_heads
from rlcore_testing.rig.policies import make_dialogues
from rlcore_testing.small import make_gpt2, make_t5, make_tokenizer
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig, LanguageModelConfig, SpeedConfig
from rlcore_transformers.models.speed import BY_NAME, NOT_MEASURED, TECHNIQUES, SpeedReport, Technique, TechniqueRefused
from rlcore_transformers.optimizers.optimizer_options import AMSGradOptions
from rlcore_transformers.sampling.token_options import SamplerConfig, TokenOptions

ROOT = Path(__file__).resolve().parents[3]
SECTIONS: dict[str, Any] = {
    "model": LanguageModelConfig, "sampler": SamplerConfig, "gen": SamplingConfig,
    "trainer.optimizer.options": AMSGradOptions,
}  # fmt: skip
OF_MODELS = [field.name for field in attrs.fields(SpeedConfig)]  # has no effect


def default_of(option: str) -> Any:
    """Return the default of a dotted option of a run's configuration."""
    section = next(each for each in SECTIONS if option.startswith(f"{each}."))
    cls, default = SECTIONS[section], None
    for part in option.removeprefix(f"{section}.").split("."):
        field, kind = fields(cls)[part]
        cls, default = section_class(kind), field.default
    return default


@pytest.mark.parametrize("technique", TECHNIQUES, ids=lambda technique: technique.name)
def test_every_speed_technique_has_a_row_an_option_and_a_figure(technique: Technique) -> None:
    assert default_of(technique.option) is True
    assert importlib.import_module(technique.file)
    if technique.measured != NOT_MEASURED:
        figures = re.findall(r"(?<![\w.])(?:\d+\.\d+|\.\d+|\d{3,})(?!\d)", technique.measured)
        assert figures
        lines = (ROOT / "benchmarks" / "techniques.csv").read_text(encoding="utf-8").splitlines()
        written = "\n".join(line for line in lines if line.startswith(f"{technique.name},"))
        for figure in figures:
            assert figure in written, f"{technique.name}: {figure} is not in benchmarks/techniques.csv"


def test_every_option_and_every_file_of_speed_has_a_row() -> None:
    of_samplers = fields(SamplerConfig).keys() - fields(TokenOptions).keys()
    assert {f"model.speed.{name}" for name in OF_MODELS} | {f"sampler.{name}" for name in of_samplers} <= {
        technique.option for technique in TECHNIQUES
    }
    files = {
        f"rlcore_transformers.models.speed.{path.stem}"
        for path in (ROOT / "plugins/rlcore_transformers/models/speed").glob("[a-z]*.py")
    }
    assert files <= {technique.file for technique in TECHNIQUES}
    assert len(BY_NAME) == len(TECHNIQUES)


def test_an_unknown_technique_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"model\.speed\.prefix: .*'prefixes'"):
        structure(CausalLMConfig, {"speed": {"prefix": False}}, path="model")


@pytest.mark.parametrize("name", OF_MODELS)
def test_disabling_a_speed_technique_does_not_change_results(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLCORE_LOG_LEVEL", "debug")
    policies = []
    for speed in (SpeedConfig(), SpeedConfig(**{name: False})):
        torch.manual_seed(0)
        config = CausalLMConfig(unfrozen_layers=1, speed=speed)
        policies.append(
            build_causal_lm(make_gpt2(), config, tokenizer=make_tokenizer(), value_head=True, heads=q_heads(2))
        )
    logged = capsys.readouterr().err
    assert f"{name} off (switched off)" in logged
    assert logged.count("[debug    ] speed: packing ") == 2
    with_it, without = (_outputs(policy) for policy in policies)
    for one, other in zip(with_it, without, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def _outputs(policy: Any) -> list[torch.Tensor]:
    """Return log-probs, values, gradients, and samples with their log-probs."""
    batch = make_dialogues()
    with policy.training_step():
        policy.score(batch)
        outputs = policy.score(batch, entropy=True)
        (
            outputs.logprobs.sum()
            + outputs.values.sum()
            + outputs.heads["q_values"].sum()
            + outputs.heads["q_logprobs"].sum()
        ).backward()
    gradients = [parameter.grad for parameter in policy.module.parameters() if parameter.grad is not None]
    sampled = []
    for lengths in ((0, 19, 19, 3), (0, 2, 1, 3)):  # the first batch shares long prompts, the second is short
        prompts = [Prompt(text="", tokens=(3, 4, 5, *(6,) * n, 7)) for n in lengths for _ in range(10)]
        generator = torch.Generator().manual_seed(1)
        drawn = sample(policy, prompts, SamplingConfig(max_new_tokens=8), generator=generator)
        sampled += [drawn.tokens, drawn["logprobs"]]
    return [outputs.logprobs, outputs.values, outputs.entropy, *gradients, *sampled]


def test_the_log_lists_disabled_speed_techniques_with_the_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlcore_transformers.models.causal import build_seq2seq_lm
    from rlcore_transformers.models.model_options import Seq2SeqLMConfig

    config = CausalLMConfig(attention="eager", speed=SpeedConfig(fused_logprobs=False))
    build_causal_lm(make_gpt2().config, config, tokenizer=make_tokenizer())
    (line,) = capsys.readouterr().err.splitlines()
    assert "speed: packing off (its attention is 'eager', not 'sdpa'); fused_logprobs off (switched off) [" in line
    build_seq2seq_lm(make_t5(), Seq2SeqLMConfig(), tokenizer=make_tokenizer())
    logged = capsys.readouterr().err
    assert logged.count("speed: packing, prefixes, attention_groups, frozen_trunk off (encoder-decoder) [") == 1
    build_causal_lm(make_gpt2().config, CausalLMConfig(), tokenizer=make_tokenizer())
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("RLCORE_LOG_LEVEL", "debug")
    build_causal_lm(make_gpt2().config, config, tokenizer=make_tokenizer())
    logged = " ".join(capsys.readouterr().err.split())
    assert (
        "speed: packing off (its attention is 'eager', not 'sdpa'), prefixes off (packing is off), attention_groups "
        "off (packing is off), length_groups on, "
        "frozen_trunk off (nothing is frozen), fused_logprobs off (switched off), small_logprobs off (fused_logprobs "
        "is off), fused_activations on, packed_decoding off (packing is off), shared_prompts off (packed_decoding is "
        "off), preallocated_cache on"
    ) in logged


def test_a_technique_that_is_refused_is_reported_with_the_reason() -> None:
    report = SpeedReport(SpeedConfig(prefixes=False))

    def refuse() -> int:
        raise TechniqueRefused("its head is odd")

    assert report.find("fused_logprobs", refuse, 7) == 7
    assert report.find("prefixes", refuse, 5) == 5
    assert report.find("packing", lambda: 3, 0) == 3
    report.needs("small_logprobs", "packing", "fused_logprobs")
    assert report.reasons == {
        "fused_logprobs": "its head is odd", "prefixes": "switched off", "packing": "",
        "small_logprobs": "fused_logprobs is off",
    }  # fmt: skip
