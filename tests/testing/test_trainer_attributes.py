"""A trainer names the components that it stands on: runs, config.yaml and the kit follow, and the user may override."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import wrong_architectures
import wrong_pipelines
from laws_held import assert_kept
from sites import wrong

import rlcore
from rlcore.config import load_yaml
from rlcore.errors import DataError, PluginError
from rlcore_testing.law import LawBroken, laws_in
from rlcore_testing.laws import pipelines, trainers
from rlcore_testing.rig.runs import Tiny, run
from rlcore_testing.small import make_gpt2, make_tokenizer

pytestmark = pytest.mark.usefixtures("wrong_site")
LAWS = ("losses_are_finite", "it_learns", "evaluation_changes_nothing", "padding_changes_nothing")


def trained(root: Path, trainer: str, **given: Any) -> rlcore.Result:
    settings = {"tokenizer": make_tokenizer(), "run": {"root": str(root), "name": "run", "steps": 1}, "loggers": []}
    return rlcore.train(given.pop("model", make_gpt2()), trainer=f"acme-wrong:{trainer}", **settings, **given)


def test_a_run_and_its_config_follow_the_trainer(tmp_path: Path) -> None:
    model, rows = wrong_architectures.make_mistral(), wrong_pipelines.triples.example_rows
    result = trained(tmp_path, "stands-on-triples", model=model, samples=rows)
    assert len(result.run.samples) == 10
    written = load_yaml(result.run_dir / "config.yaml")
    assert written["data"]["sample_pipeline"] == "triples"
    assert written["data"]["prompt_pipeline"] == "prompts"
    assert written["model"]["architecture"] == "mistral"


def test_an_option_of_the_user_overrides_the_trainer(tmp_path: Path) -> None:
    own = {"data": {"sample_pipeline": "samples"}, "config": {"model": {"architecture": "causal_lm"}}}
    result = trained(tmp_path, "stands-on-triples", samples=[["ab", "cd"], ["e", "f"]], **own)
    assert len(result.run.samples) == 2
    assert load_yaml(result.run_dir / "config.yaml")["model"]["architecture"] == "causal_lm"
    with pytest.raises(DataError, match=r"samples: rows are \(question, answer, score\)"):
        trained(tmp_path / "other", "imitates", samples=[["ab", "cd"]], data={"sample_pipeline": "triples"})


def test_an_attribute_that_is_no_name_is_an_error_of_the_plugin(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"names-a-tuple.*sample_pipeline = \('triples',\): must be the name"):
        trained(tmp_path, "names-a-tuple", samples=[["ab", "cd"]])


@pytest.mark.parametrize("name", LAWS)
def test_the_kit_feeds_a_trainer_the_rows_of_its_pipeline(name: str) -> None:
    (law,) = (law for law in laws_in(trainers) if law.name == name)
    assert_kept(law, wrong("trainers", "stands-on-triples"))


def test_the_kit_follows_sections_of_the_configuration(tmp_path: Path) -> None:
    sections = {"data": {"sample_pipeline": "triples"}, "gen": {"top_k": 5}, "run": {"root": "elsewhere"}}
    subject = wrong("trainers", "imitates", sections=sections)
    ran = run(Tiny.of(subject, str(tmp_path), steps=1, sections={"gen": {"top_k": 4}})).result.run
    assert len(ran.samples) == len(wrong_pipelines.triples.example_rows)
    assert (ran.config.gen.top_k, ran.config.run.root) == (4, str(tmp_path))


def test_laws_pass_the_data_section_to_pipelines() -> None:
    (law,) = (law for law in laws_in(pipelines) if law.name == "long_rows_are_truncated_or_refused")
    with pytest.raises(LawBroken, match="has no BOS token"):
        law(wrong("pipelines", "triples", sections={"data": {"add_bos": True}}))
