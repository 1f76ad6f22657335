"""Tests of the model card, and of what is checked before a run that is to push its model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import rlcore
from rlcore.errors import ConfigError, HubError
from rlcore_testing.small import PROMPTS, make_gpt2, make_tokenizer, toy_reward
from rlcore_tools.hub import push


def train(folder: Path, **run: Any) -> rlcore.Result:
    return rlcore.train(
        make_gpt2(), tokenizer=make_tokenizer(), trainer={"name": "ppo", "rollouts": 4, "batch_size": 4, "epochs": 1},
        prompts=list(PROMPTS), reward_fn=toy_reward, gen={"max_new_tokens": 3}, loggers=[],
        run={"root": str(folder), "name": "run", "steps": 8, **run},
    )  # fmt: skip


def test_a_saved_model_has_a_card_with_the_sources_of_its_algorithm_and_a_table_of_curves(tmp_path: Path) -> None:
    result = train(tmp_path)
    result.save_pretrained(tmp_path / "saved")
    card = (tmp_path / "saved" / "README.md").read_text()
    assert card == (result.run_dir / "model" / "README.md").read_text()
    assert yaml.safe_load(card.split("---\n")[1])["tags"] == ["rlcore", "ppo"]
    assert "[arXiv:1707.06347](https://arxiv.org/abs/1707.06347)" in card
    assert "| `reward_fn` | `rlcore_testing.small:toy_reward` |" in card
    (curve,) = re.findall(r"\| `reward/mean` \| (.*) \|", card)
    assert [point.partition(":")[0] for point in curve.split(", ")] == ["1", "2", "4", "5", "7", "8"]


def test_a_name_that_no_repository_can_have_and_a_missing_token_are_found_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"run.push_to_hub = 'a/b/c': no repository can have this name"):
        train(tmp_path, push_to_hub="a/b/c")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(ConfigError, match=r"run.push_to_hub = 'me/walks': there is no token .*hf auth login"):
        train(tmp_path, push_to_hub="me/walks")
    assert not (tmp_path / "run").exists()


def test_a_folder_without_a_model_is_not_pushed(tmp_path: Path) -> None:
    with pytest.raises(HubError, match=r"there is no trained model here"):
        push(tmp_path, "me/walks")
