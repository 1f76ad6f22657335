"""Tests of faulty third-party trainers: the error names the trainer, not the user, at or before the first step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from e2e_plugins import Plugins, plugins
from e2e_scenarios import scenario

import rlcore
from rlcore.errors import PluginError

__all__ = ["plugins"]  # a fixture

TRAINER = """
class Trainer:
    needs = ("samples",)
    default_budget = {{"steps": 1}}

    def __init__(self, config, run):
        self.model = run.build()

    def steps(self):
        while True:
            yield {{"loss/total": 1.0}}

    def policy(self): return self.model
    def state_dict(self): return {{}}
    def load_state_dict(self, state): pass
{wrong}

@hookimpl
def register_trainers(register):
    register("odd", Trainer)
"""
WRONG = {
    "    del needs": r"needs = None: must be a tuple of inputs",
    "    needs = ('prompts')": r"needs = 'prompts': must be a tuple of inputs, such as \(\"reward_fn\", \"prompts\"\)",
    "    needs = ('prompt',)": r"needs = \('prompt',\): .* among prompts, samples",
    "    del default_budget": r"default_budget = None: must be a mapping",
    "    default_budget = {'step': 3}": r"default_budget = \{'step': 3\}: .* among steps, epochs, time_s",
    "    del state_dict": r"has no method state_dict\(\)",
    "    default_for = ('reward',)": r"default_for = \('reward',\): must be a tuple of inputs",
    "    def policy(self): return None": r"policy\(\) returned None; return the policy that run\.build",
    "    def steps(self): return {'loss': 1.0}": r"steps\(\) returned dict; it must be a generator",
    "    def steps(self): yield": r"steps\(\) yielded None at step 1; yield a dict of metrics",
    "    def state_dict(self): return None": r"state_dict\(\) returned None; return a dict",
}


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
def test_a_trainer_with_a_mistake_is_an_error_that_names_its_plugin(
    wrong: str, plugins: Plugins, tmp_path: Path
) -> None:
    plugins.install("acme-odd", TRAINER.format(wrong=wrong))
    with pytest.raises(PluginError, match=f"trainer 'odd'.*{WRONG[wrong]}"):
        run(tmp_path)


def test_the_same_trainer_without_the_mistake_runs(plugins: Plugins, tmp_path: Path) -> None:
    plugins.install("acme-odd", TRAINER.format(wrong=""))
    assert run(tmp_path).run.step == 2


def test_a_run_ends_when_its_trainer_yields_no_further_step(plugins: Plugins, tmp_path: Path) -> None:
    plugins.install("acme-odd", TRAINER.format(wrong="    def steps(self): yield {}"))
    assert run(tmp_path).run.step == 1


def run(root: Path) -> Any:
    given = scenario("sft_plain", root, "run", {"run": {"steps": 2}, "eval": {"every": 0}})
    return rlcore.train(given.pop("model"), **{**given, "trainer": "odd"})
