"""Tests of plugins in a run: hook calls, wrapped components, and the plugins recorded with the run."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from e2e_plugins import OBSERVER, REWARDS, STORE, Plugins, plugins, said_by
from e2e_processes import assert_same_run, newest_checkpoint
from e2e_scenarios import train

from rlcore import errors

__all__ = ["plugins"]  # a fixture

SHORT = {"run": {"steps": 2}, "trainer": {"epochs": 1}}
UNCHECKED = {**SHORT, "run": {"steps": 2, "check_functions": False}}
EVENTS = """
heard = []

@hookimpl
def on_run_start(run): heard.append(("on_run_start", run.step))

@hookimpl
def on_rollout(run, batch): heard.append(("on_rollout", run.step, len(batch), "rewards" in batch))

@hookimpl
def on_step(run, metrics): heard.append(("on_step", run.step, "reward/mean" in metrics))

@hookimpl
def on_evaluate(run, metrics): heard.append(("on_evaluate", run.step, "eval/reward/mean" in metrics))

@hookimpl
def on_checkpoint(run, path): heard.append(("on_checkpoint", path.name, (path / "manifest.json").is_file()))

@hookimpl
def on_run_end(run, error): heard.append(("on_run_end", error))
"""
WRAPPER = """
import functools
from collections import Counter

used = Counter()
METHODS = {"trainers": "state_dict", "architectures": "score", "rollout_stores": "take", "loggers": "metrics"}


def counted(function, kind):
    @functools.wraps(function)
    def call(*args, **kwargs):
        used[kind] += 1
        return function(*args, **kwargs)
    return call


@hookimpl
def wrap_component(component):
    def around(built):
        method = METHODS.get(component.kind)
        if method is None:
            return counted(built, component.kind)
        setattr(built, method, counted(getattr(built, method), component.kind))
        return built
    return around
"""
NARROW_WRAPPER = """
@hookimpl
def wrap_component(component):
    return (lambda built: built) if component.name == "{name}" else None
"""
IDLE = """
@hookimpl
def register_samplers(register):
    register("unused", "json:dumps")
"""


def test_the_events_of_a_ppo_run_come_in_the_documented_order(plugins: Plugins, tmp_path: Path) -> None:
    plugins.install("acme-watch", EVENTS)
    cadence = {"eval": {"every": 2, "at_start": True, "at_end": True}, "checkpoint": {"every": 2}}
    train("ppo_config", tmp_path, "run", {**SHORT, "run": {"steps": 3}, **cadence})

    def step(number: int) -> list[tuple[Any, ...]]:
        return [("on_rollout", number - 1, 10, True), ("on_step", number, True)]

    assert plugins["acme-watch"].heard == [
        ("on_run_start", 0),
        ("on_evaluate", 0, True),
        *step(1),
        *step(2),
        ("on_evaluate", 2, True),
        ("on_checkpoint", "00000002", True),
        *step(3),
        ("on_evaluate", 3, True),
        ("on_checkpoint", "00000003", True),
        ("on_run_end", None),
    ]


def test_observers_receive_the_error_that_ends_a_run(plugins: Plugins, tmp_path: Path) -> None:
    plugins.install("acme-watch", EVENTS)
    with pytest.raises(errors.RewardError) as caught:
        train("ppo_config", tmp_path, "run", {**UNCHECKED, "reward_fn": lambda outputs: [None, "no"]})
    assert plugins["acme-watch"].heard == [("on_run_start", 0), ("on_run_end", caught.value)]


@pytest.mark.slow
def test_a_wrapped_component_is_used_and_does_not_change_the_numbers(plugins: Plugins, tmp_path: Path) -> None:
    plugins.install("acme-rewards", REWARDS)
    changes = {**SHORT, "eval": {"every": 1}, "checkpoint": {"every": 1}, "reward_fn": "letters", "loggers": []}
    train("ppo_config", tmp_path, "plain", changes)
    plugins.install("acme-timer", WRAPPER)
    train("ppo_config", tmp_path, "wrapped", changes)
    assert_same_run(tmp_path / "plain", tmp_path / "wrapped")
    used: Counter[str] = plugins["acme-timer"].used
    per_run = {"rollout_stores": 2, "trainers": 2, "samplers": 4, "rewards": 4, "loggers": 4, "pipelines": 2}
    assert {kind: used[kind] for kind in per_run} == per_run
    assert used["architectures"] > 2


def test_every_plugin_that_was_used_is_recorded_and_no_other(plugins: Plugins, tmp_path: Path) -> None:
    plugins.install("acme-rewards", REWARDS, version="1.4")
    plugins.install("acme-watch", OBSERVER.format(hook="on_step", body="pass"), version="2.0")
    plugins.install("acme-timer", NARROW_WRAPPER.format(name="default"), version="0.1")
    plugins.install("acme-other", NARROW_WRAPPER.format(name="unused"))
    plugins.install("acme-idle", IDLE)
    plugins.install("acme-store", STORE, version="0.9")
    changes = {**SHORT, "store": "shelf", "reward_fn": [["short", 0.5], {"fn": "letters", "weight": 2, "letter": "b"}]}
    train("ppo_config", tmp_path, "run", changes)
    used = {"acme-rewards": "1.4", "acme-watch": "2.0", "acme-timer": "0.1", "acme-store": "0.9"}
    recorded = said_by(tmp_path / "run")
    # The trainer, what it trains, and observers of every run.
    ours = {"rlcore-ppo", "rlcore-transformers", "rlcore-report", "rlcore-tools"}
    assert all(recorded.pop(dist) for dist in ours)
    assert recorded == used
    manifest = json.loads((newest_checkpoint(tmp_path / "run") / "manifest.json").read_text())
    assert {dist for dist in manifest["plugins"] if dist.startswith("acme")} == set(used)
    assert manifest["plugins"].keys() - used.keys() == {"rlcore", *ours}


@pytest.mark.parametrize(
    "reward_fn",
    ["short", "acme-rewards:short", ["short"], [("short", 2)], {"brief": "short"}, {"brief": {"fn": "short"}}],
    ids=str,
)
def test_a_registered_reward_is_recorded_whatever_its_form(reward_fn: Any, plugins: Plugins, tmp_path: Path) -> None:
    plugins.install("acme-rewards", REWARDS)
    train("ppo_config", tmp_path, "run", {"run": {"steps": 0}, "reward_fn": reward_fn})
    assert said_by(tmp_path / "run")["acme-rewards"] == "0.3"


@pytest.mark.slow
def test_plugins_that_were_dropped_are_listed_when_the_run_ends(
    plugins: Plugins, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugins.install("acme-late", OBSERVER.format(hook="on_run_end", body="raise KeyError('late')"))
    plugins.install("acme-bad", OBSERVER.format(hook="on_step", body="if run.step == 2: raise ValueError('no')"))
    plugins.install("acme-wrap", "@hookimpl\ndef wrap_component(component): raise OSError('clock')\n")
    dropped = [
        "acme-wrap:main  wrap_component of trainer 'ppo' at step 0: OSError: clock",
        "acme-bad:main  on_step at step 2: ValueError: no",
        "acme-late:main  on_run_end at step 3: KeyError: 'late'",
    ]
    done = train("ppo_config", tmp_path, "shown", {**SHORT, "run": {"steps": 3}, "loggers": ["console"]})
    assert [str(each) for each in done.run.dropped] == dropped
    shown = capsys.readouterr()
    assert shown.out.splitlines()[-3:] == [f"  dropped    {each}" for each in dropped]
    assert "plugins were dropped in this run" not in shown.err
    assert shown.err.count("_dropped ") == 3  # each was logged once, when it happened
    train("ppo_config", tmp_path, "quiet", {**SHORT, "run": {"steps": 3}})
    told = [line for line in capsys.readouterr().err.splitlines() if "plugins were dropped in this run" in line]
    assert len(told) == 1
    assert all(json.dumps(each)[1:-1] in told[0] for each in dropped)


def test_a_logger_that_is_dropped_is_listed_by_its_full_name(
    plugins: Plugins, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugins.install(
        "acme-logs",
        "class Broken:\n"
        "    def __init__(self, config, run): pass\n"
        "    def metrics(self, step, metrics): raise ConnectionError('gone')\n"
        "    def completions(self, step, rows): pass\n"
        "    def close(self, error): pass\n"
        "@hookimpl\ndef register_loggers(register): register('remote', Broken)\n",
    )
    done = train("ppo_config", tmp_path, "run", {**SHORT, "loggers": ["console", "remote"]})
    (dropped,) = done.run.dropped
    assert (dropped.plugin, dropped.what, dropped.step) == ("acme-logs:remote", "metrics", 1)
    line = "  dropped    acme-logs:remote  metrics at step 1: ConnectionError: gone"
    assert capsys.readouterr().out.splitlines()[-1] == line


def test_a_logger_that_cannot_be_built_leaves_no_run_behind(plugins: Plugins, tmp_path: Path) -> None:
    source = "@hookimpl\ndef register_loggers(register): register('remote', lambda config, run: {'a': 1}['key'])\n"
    plugins.install("acme-logs", source)
    with pytest.raises(KeyError, match="key"):
        train("ppo_config", tmp_path, "run", {**SHORT, "loggers": ["remote"]})
    assert not (tmp_path / "run").exists()
