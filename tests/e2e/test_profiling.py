"""Tests of profiling a run: times add up, results do not change, and the profile is written however the run ends."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from e2e_plugins import TRAINER, Plugins, plugins, said_by
from e2e_processes import assert_same_run, lines
from e2e_profiles import check_trace, names, told
from e2e_scenarios import save_model, scenario, train

import rlcore
from rlcore import profiling
from rlcore.cli import main
from rlcore.errors import ConfigError
from rlcore.plugins import observers as providers
from rlcore.plugins.builtin import Published
from rlcore_testing.rig.isolate import call_on_two_ranks
from rlcore_transformers.models.policy import ModelPolicy

__all__ = ["plugins"]  # a fixture

ON = {"run": {"steps": 5, "profile": True}}
WATCH = """
import time
ticks = []

@hookimpl
def on_step(run, metrics):
    ticks.append(time.perf_counter())
"""

COMMON = {"log", "log/rlcore:jsonl", "hooks", "hooks/acme-watch:main", "evaluate", "evaluate/generate", "checkpoint"}
COMMON |= {"trainer", "driver"}
SAMPLED = {"generate", "reward", "reward/reward functions"}
LEARNED = {"batches", "update", "update/forward", "update/backward", "optimizer", "metrics"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "trainer", "phases"),
    [
        ("ppo_plain", None, {*SAMPLED, *COMMON, *LEARNED, "score"}),
        ("sft_plain", None, {*COMMON, *LEARNED, "evaluate/score", "evaluate/batches", "evaluate/metrics"}),
        ("ppo_plain", {"name": "reinforce", "rollouts": 40}, {*SAMPLED, *COMMON, *LEARNED}),
        ("ppo_plain", "own", {*SAMPLED, *COMMON, "score", "update/forward"}),
    ],
    ids=["ppo", "sft", "reinforce", "own"],
)
def test_the_phases_add_up_to_the_steps_as_another_clock_has_them(
    name: str, trainer: Any, phases: set[str], tmp_path: Path, plugins: Plugins
) -> None:
    plugins.install("acme-watch", WATCH)
    # Nothing is due between the first and last steps, so steps 2 to 5 span the time between the ends of steps 1 and 5.
    run = {"steps": 5, "profile": True}
    given = scenario(name, tmp_path, "run", {"run": run})
    if trainer == "own":
        plugins.install("acme-own", TRAINER)
    rlcore.train(given.pop("model"), **{**given, "trainer": trainer or given["trainer"]})
    profile = told(tmp_path / "run")
    ticks = plugins["acme-watch"].ticks
    assert len(ticks) == 5
    summed = sum(r["total_s"] for r in profile["steps"]["phases"] if len(r["path"]) == 1) + profile["steps"]["other_s"]
    assert summed == pytest.approx(ticks[-1] - ticks[0], rel=0.03)
    assert profile["steps"]["num_steps"] == 4
    assert names(profile["steps"]) >= phases
    tokens = {"/".join(row["path"]): row["tokens"] for row in profile["steps"]["phases"]}
    if name == "sft_plain":
        learned = [row["data/tokens"] for row in lines(tmp_path / "run/metrics.jsonl") if "data/tokens" in row]
        # A sample's first letter is its prompt, and is not a chosen token; the last batch of a pass is smaller.
        assert tokens["update"] == sum(learned[1:]) + 5 + 5 + 5 + 3
    else:
        assert tokens["generate"] > 0
        assert tokens["update"] > 0
    spans = check_trace(tmp_path / "run")
    for step in range(1, 6):
        [(begun, ended)] = spans[f"step {step}"]
        assert sum(begun <= start and end <= ended for start, end in spans["acme-watch:main"]) == 1


def test_rewards_computed_during_sampling_have_their_own_track_in_the_trace(tmp_path: Path) -> None:
    threads = set()

    def slow(outputs: list[str]) -> list[float]:
        threads.add(threading.current_thread().name)
        time.sleep(0.02)
        return [float(len(output)) for output in outputs]

    changes = {"run": {"steps": 3, "profile": True, "overlap_rewards": True}, "gen": {"batch_size": 4}}
    train("ppo_plain", tmp_path, "run", {**changes, "reward_fn": slow})
    profile = told(tmp_path / "run")
    beside, within = profile["steps"]["beside"]
    assert (beside["path"], within["path"]) == (["reward functions"], ["reward functions", "slow"])
    assert beside["calls"] == 2 * 3  # 10 rollouts in chunks of 4, in each of steps 2 and 3
    assert beside["total_s"] >= 6 * 0.02
    assert {"generate", "generate/reward", "reward"} <= names(profile["steps"])  # the last two: decoding texts, waiting
    trace = json.loads((tmp_path / "run/profile/trace.json").read_text())["traceEvents"]
    tracks = {event["args"]["name"]: event["tid"] for event in trace if event["ph"] == "M"}
    assert {tracks[name] for name in threads - {"MainThread"}} == {
        event["tid"] for event in trace if event["name"] == "reward functions" and event["tid"] > 0
    }
    check_trace(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo_config", "sft_config"])
def test_profiling_changes_only_the_printed_text_and_one_folder(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(name, tmp_path, "off", {"run": {"steps": 4}})
    assert capsys.readouterr().out == ""
    result = train(name, tmp_path, "on", {"run": {"steps": 4, "profile": True}})
    assert_same_run(tmp_path / "off", tmp_path / "on")
    off, on = ({path.name for path in (tmp_path / run).iterdir()} for run in ("off", "on"))
    assert on - off == {"profile"}
    assert {path.name for path in (tmp_path / "on/profile").iterdir()} == {"table.txt", "phases.json", "trace.json"}
    assert capsys.readouterr().out.startswith((tmp_path / "on/profile/table.txt").read_text())
    assert isinstance(result.policy, ModelPolicy)
    before = (tmp_path / "on/profile/table.txt").read_text()
    result.generate(["a"])
    assert (tmp_path / "on/profile/table.txt").read_text() == before


def test_a_run_that_fails_leaves_a_profile(tmp_path: Path) -> None:
    calls = []

    def fail(outputs: list[str]) -> list[float]:
        calls.append(1)
        if len(calls) == 4:  # the second is round 2, the third is its evaluation
            raise ValueError("no judge")
        return [0.0] * len(outputs)

    with pytest.raises(rlcore.RLCoreError, match="no judge"):
        train("ppo_plain", tmp_path, "run", {**ON, "reward_fn": fail})
    profile = told(tmp_path / "run")
    assert (profile["first"]["last_step"], profile["steps"]["last_step"]) == (1, 2)
    assert {"generate", "reward"} <= names(profile["around"])
    assert "update" not in names(profile["around"])
    assert check_trace(tmp_path / "run")["step 3"]


def test_a_run_that_another_observer_ends_leaves_a_profile(
    tmp_path: Path, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = "@hookimpl\ndef on_run_end(run): raise KeyboardInterrupt"
    for dist in ("acme-a", "zeta-z"):  # both outside and inside the recorder
        plugins.install(dist, end)
    with pytest.raises(KeyboardInterrupt):
        train("sft_plain", tmp_path, "run", ON)
    assert told(tmp_path / "run")["steps"]["last_step"] == 5
    assert {"hooks/acme-a:main", "hooks/zeta-z:main"} <= names(told(tmp_path / "run")["around"])
    assert profiling.phase("a") is profiling.phase("b")


@pytest.mark.slow
def test_a_run_within_a_profiled_run_has_a_profile_of_its_own(tmp_path: Path) -> None:
    inner = []

    def judge(outputs: list[str]) -> list[float]:
        if len(inner) < 1:
            inner.append(1)
            with torch.enable_grad():
                train("sft_plain", tmp_path, "inner", {"run": {"steps": 2, "profile": True}})
        return [float(len(output)) for output in outputs]

    train("ppo_plain", tmp_path, "run", {**ON, "reward_fn": judge})
    assert told(tmp_path / "inner")["steps"]["last_step"] == 2
    assert told(tmp_path / "run")["steps"]["last_step"] == 5


def test_the_package_of_the_plugin_is_recorded(tmp_path: Path) -> None:
    for name, profile in (("off", False), ("on", True)):
        train("sft_plain", tmp_path, name, {"run": {"steps": 1, "profile": profile}})
        assert said_by(tmp_path / name)["rlcore-report"]  # which also writes the reports of both


def test_a_run_is_not_profiled_without_the_plugin(
    tmp_path: Path, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        ConfigError,
        match=r"run\.profile = True: comes with rlcore-report, which is installed, but disabled \(.*plugins\.disable",
    ):
        train("sft_plain", tmp_path, "run", {**ON, "plugins": {"disable": ["profile"]}})
    monkeypatch.setattr(providers, "published", lambda kind: {"run.profile": Published("acme-profile")})
    with pytest.raises(ConfigError, match="comes with acme-profile, which is not installed: pip install acme-profile"):
        train("sft_plain", tmp_path, "run", {**ON, "plugins": {"disable": ["profile"]}})
    assert not (tmp_path / "run").exists()


def test_a_run_that_is_stopped_at_once_leaves_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls = []

    def interrupt(outputs: list[str]) -> list[float]:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return [0.0] * len(outputs)

    with pytest.raises(KeyboardInterrupt):
        train("ppo_plain", tmp_path, "run", {**ON, "reward_fn": interrupt})
    assert told(tmp_path / "run")["steps"]["last_step"] == 2
    assert "where the time of step 2 went" in capsys.readouterr().out


def test_a_profile_that_cannot_be_written_does_not_end_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_text

    def refuse(path: Path, *given: Any, **named: Any) -> int:
        if path.parent.name == "profile":
            raise OSError(28, "No space left on device")
        return write(path, *given, **named)

    monkeypatch.setattr(Path, "write_text", refuse)
    assert train("sft_plain", tmp_path, "run", ON).run.step == 5
    assert "the profile could not be written" in capsys.readouterr().err


def test_a_resumed_run_profiles_its_own_steps_only(tmp_path: Path) -> None:
    train("sft_config", tmp_path, "run", {"run": {"steps": 2}})
    train("sft_config", tmp_path, "run", {"run": {"steps": 6, "resume": "auto", "profile": True}})
    profile = told(tmp_path / "run")
    assert [profile[name]["first_step"] for name in ("first", "steps")] == [3, 4]
    assert profile["steps"]["last_step"] == 6
    assert len(lines(tmp_path / "run/metrics.jsonl")) == 9


@attrs.frozen
class Company:
    """A profiled run of two ranks: each rank's output, and whether its policy is an instance of the built class."""

    folder: Path
    printed: tuple[str, ...]
    as_built: tuple[bool, ...]


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Company:
    folder = tmp_path_factory.mktemp("company")
    ranks = call_on_two_ranks("e2e_profiles:in_company", {"folder": str(folder)}, what="a profile of two ranks")
    return Company(folder / "run", *zip(*ranks, strict=True))


@pytest.mark.nightly
def test_only_the_first_of_two_ranks_writes_a_profile(company: Company) -> None:
    assert [text.count("where the time of steps 2 to 3 went") for text in company.printed] == [1, 0]
    assert {"generate", "update", "evaluate"} <= names(told(company.folder)["steps"])
    check_trace(company.folder)


@pytest.mark.nightly
def test_profiling_two_ranks_counts_their_exchange_and_keeps_the_type_of_the_policy(company: Company) -> None:
    assert company.as_built == (True, True)
    assert {"generate", "update/forward", "evaluate", "gather"} <= names(told(company.folder)["steps"])
    assert (company.folder / "profile/table.txt").read_text().startswith("where the time of steps 2 to 3 went")


def test_operators_lie_among_the_phases_in_a_trace_of_their_own(tmp_path: Path) -> None:
    train("sft_plain", tmp_path, "run", {"run": {"steps": 5, "profile": "torch"}, "eval": {"every": 0}})
    profile = told(tmp_path / "run")
    assert (profile["first"]["last_step"], profile["steps"]["first_step"], profile["steps"]["last_step"]) == (1, 4, 5)
    events = json.loads((tmp_path / "run/profile/operators.json").read_text())["traceEvents"]
    (update, *rest) = [event for event in events if event["name"] == "update" and event["cat"] == "user_annotation"]
    assert len(rest) == 3  # two micro-batches, two steps
    within = [e["name"] for e in events if e.get("cat") == "cpu_op" and 0 <= e["ts"] - update["ts"] <= update["dur"]]
    assert "aten::embedding" in within


def test_a_profiled_run_of_one_step_states_that_no_operators_were_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train("sft_plain", tmp_path, "run", {"run": {"steps": 1, "profile": "torch"}})
    assert "no operators were recorded" in capsys.readouterr().err
    assert not (tmp_path / "run/profile/operators.json").exists()


def test_the_command_line_can_profile_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, file = save_model(tmp_path / "base"), str(tmp_path / "run.yaml")
    values = {"model": {"path": str(base)}, "trainer": {"name": "sft", "batch_size": 2},
              "data": {"samples": ["abc", "bcd", "cde"]}, "run": {"root": str(tmp_path), "name": "run", "steps": 2},
              "loggers": []}  # fmt: skip
    Path(file).write_text(json.dumps(values))
    assert main(["train", file, "--profile"]) == 0
    assert capsys.readouterr().out.startswith("where the time of step 2 went")
    told(tmp_path / "run")
    assert "profile: true" in (tmp_path / "run/config.yaml").read_text()
    # A value set for the option itself takes precedence.
    assert main(["train", file, "run.overwrite=true", "--profile", "run.profile=jax"]) == 1
    assert "run.profile = 'jax'" in capsys.readouterr().err
