"""Tests that plugins, configurations and run folders made while all packages were one core still work."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from e2e_plugins import Plugins, plugins
from e2e_processes import newest_checkpoint
from e2e_scenarios import save_model, train

import rlcore
from rlcore import _moved
from rlcore.checkpoints.manifest import OWN_FIELDS, write_manifest
from rlcore.config import load_yaml
from rlcore.plugins.registry import registries

__all__ = ["plugins"]  # a fixture

SOURCE = '''
"""Every module of the core that authors of plugins imported, by its name at that time."""

from rlcore import settings
from rlcore.config import config, option
from rlcore.data.prompts import build_prompts
from rlcore.data.sources import load_source
from rlcore.models.causal import build_causal_lm
from rlcore.models.model_options import CausalLMConfig
from rlcore.models.policy import ModelPolicy
from rlcore.optim import Updater
from rlcore.sampling import sample
from rlcore.sampling.sampler import build_sampler
from rlcore.sampling.sampler_options import SamplerConfig
from rlcore.testing import Case, conformance
from rlcore.testing.small import PROMPTS, make_gpt2, make_tokenizer
from rlcore.training import MemoryStore, Meter, Order, Run, disable_dropout, gather_round

calls = []


@config
class Options:
    rollouts: int = option(4, "responses of a round", ge=2)
    optimizer: settings.OptimizerConfig = option(settings.OptimizerConfig(lr=1e-2), "AdamW")


class Climb:
    needs, default_budget = ("reward_fn", "prompts"), {"steps": 1}

    def __init__(self, config: Options, run: Run) -> None:
        self.config, self.run, self._policy = config, run, run.build_policy()
        assert isinstance(self._policy, ModelPolicy)
        disable_dropout(self._policy.module)
        self.order = Order(len(run.prompts), run.config.run.seed)
        self.updater = run.updater(self._policy, config.optimizer)

    def steps(self):
        while True:
            indices = self.order.take(self.config.rollouts)
            batch, scored = self.run.rollout([self.run.prompts[i] for i in indices])
            batch, metrics = gather_round(self.run, batch, scored)
            advantages = (batch["scores"] - batch["scores"].mean())[:, None]
            logprobs = self._policy.score(batch, temperature=self.run.temperature).logprobs
            self.updater.backward(-(advantages * logprobs).sum() / batch.num_actions.sum())
            self.updater.step()
            yield metrics

    def policy(self):
        return self._policy

    def state_dict(self):
        return {"updater": self.updater.state_dict(), "order": self.order.state_dict()}

    def load_state_dict(self, state):
        self.updater.load_state_dict(state["updater"])
        self.order.load_state_dict(state["order"])


def prompts(source, tokenizer, data, **given):
    calls.append("prompts")
    return build_prompts(load_source(source), tokenizer, data, **given)


def build(spec, config, **given):
    calls.append("build")
    return build_causal_lm(spec, config, **given)


def sampler(options):
    calls.append("sampler")
    return build_sampler(options)


@hookimpl
def register_trainers(register):
    register("climb", Climb, config=Options)


@hookimpl
def register_pipelines(register):
    register("acme_prompts", prompts)


@hookimpl
def register_architectures(register):
    register("acme_lm", build, config=CausalLMConfig)


@hookimpl
def register_samplers(register):
    register("acme_sampler", sampler, config=SamplerConfig)


@hookimpl
def register_rewards(register):
    register("letters", lambda outputs: [float(output.count("a")) for output in outputs])
'''
CONFIGURATION = """
model: {{path: {model}, architecture: acme_lm}}
trainer: {{name: climb}}
data: {{prompts: [a, bc, def, gh], prompt_pipeline: {pipeline}, reward_fn: letters}}
gen: {{max_new_tokens: 3}}
sampler: {sampler}
loggers: []
run: {{steps: 1, root: {root}}}
"""


@pytest.fixture
def forgotten() -> None:
    """Forget modules by their old names, so that importing one warns again."""
    for name in [name for name in sys.modules if _moved.new_name(name) is not None]:
        del sys.modules[name]


@pytest.fixture
def climb(plugins: Plugins, forgotten: None) -> Plugins:
    plugins.install("acme-climb", SOURCE, version="0.3")
    with pytest.warns(DeprecationWarning, match=r"rlcore\.models\.causal has moved: import rlcore_transformers"):
        assert registries().trainers.get("climb").dist == "acme-climb"
    return plugins


@pytest.mark.parametrize(
    ("pipeline", "sampler", "calls"),
    [
        ("acme_prompts", "acme_sampler", {"prompts", "build", "sampler"}),
        ("rlcore:prompts", "rlcore:default", {"build"}),
        ("rlcore:prompts", "{name: 'rlcore:default', inverse_cdf: false}", {"build"}),
    ],
)
def test_a_plugin_and_a_configuration_with_the_old_names_train(
    climb: Plugins, tmp_path: Path, pipeline: str, sampler: str, calls: set[str]
) -> None:
    file = tmp_path / "old.yaml"
    model = save_model(tmp_path / "model")
    file.write_text(CONFIGURATION.format(model=model, root=tmp_path, pipeline=pipeline, sampler=sampler))
    options = load_yaml(file)
    result = rlcore.train(options.pop("model"), **options)
    assert result.run.step == 1
    assert 0 <= result.metrics["reward/mean"] <= 3
    assert set(climb["acme-climb"].calls) == calls


@pytest.mark.slow
def test_the_kit_under_its_old_name_tests_an_old_plugin(climb: Plugins) -> None:
    from rlcore_testing import conformance

    module = climb["acme-climb"]
    assert module.conformance is conformance
    laws = {param.id: param.values[0] for param in module.conformance("acme-climb")}
    laws["trainer-climb-same_seed_same_numbers"]()


def as_recorded_then(run: Path) -> Path:
    """Rewrite a run's files as the one core wrote them: the packages that it has become are recorded nowhere."""
    became = ("rlcore-transformers", "rlcore-report", "rlcore-shard", "rlcore-tools")
    config = run / "config.yaml"
    lines = config.read_text().splitlines(keepends=True)
    config.write_text("".join(line for line in lines if not line.startswith(tuple(f"# plugin {d}" for d in became))))
    for file in run.glob("checkpoints/*/manifest.json"):
        record = json.loads(file.read_text())
        assert record["identity"]["sampler.name"] == "rlcore:default"
        assert "rlcore-transformers" in record["plugins"]
        record["plugins"] = {dist: version for dist, version in record["plugins"].items() if dist not in became}
        further = {name: value for name, value in record.items() if name not in OWN_FIELDS}
        write_manifest(file.parent, step=record["step"], score=record["score"], further=further)
    return run


@pytest.mark.slow
def test_a_run_begun_with_the_one_core_resumes_to_the_same_bits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes: dict[str, Any] = {"sampler": "rlcore:default", "trainer": {"epochs": 1}}
    whole = train("ppo_config", tmp_path, "whole", {**changes, "run": {"steps": 4}})
    train("ppo_config", tmp_path, "run", {**changes, "run": {"steps": 2}})
    as_recorded_then(tmp_path / "run")
    capsys.readouterr()
    resumed = train("ppo_config", tmp_path, "run", {**changes, "run": {"steps": 4, "resume": "auto"}})
    assert resumed.run.step == 4
    said = [line for line in capsys.readouterr().err.splitlines() if "[resume]" in line]
    assert ["resumed" in line for line in said] == [True]  # and no warning about packages
    files = [newest_checkpoint(each.run_dir) / "model/model.safetensors" for each in (whole, resumed)]
    assert files[0].read_bytes() == files[1].read_bytes()
