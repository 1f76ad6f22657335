"""Tests of plugin_machinery.py: it measures what its docstring describes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import GPT2LMHeadModel

from benchmarks import plugin_machinery
from benchmarks.example import model_config, tokenizer
from rlcore_tools.bench.duel import run_python


def test_the_made_up_dists_are_listed_and_the_plugins_among_them_loaded(tmp_path: Path) -> None:
    plugin_machinery.fill(tmp_path)
    assert len(list(tmp_path.glob("*.dist-info"))) == 100
    assert plugin_machinery.time_listing(tmp_path) > 0  # it checks that the last plugin is listed


def test_every_listener_hears_every_call() -> None:
    hooks = plugin_machinery.observing()
    observers = plugin_machinery.Observers(hooks)
    for _ in range(3):
        observers.on_step(None, {"loss": 1.0})
    assert [listener.heard for listener in hooks.get_plugins()] == [3] * 5


@pytest.mark.nightly
def test_the_share_of_an_iteration_is_what_the_observers_took_of_it(tmp_path: Path) -> None:
    GPT2LMHeadModel(model_config(tiny=True)).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    row = json.loads(
        run_python("plugin_machinery.py", "--iteration", str(tmp_path), "2", scripts=plugin_machinery.HERE)
    )
    assert 0 < row["observers_s"] < row["s_per_iteration"]
    assert row["share"] == row["observers_s"] / row["s_per_iteration"]
