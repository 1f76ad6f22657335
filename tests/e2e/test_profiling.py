"""Where a run's time went: what adds up, what changes nothing, and what is there however the run ends."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from e2e_plugins import Plugins, plugins
from e2e_processes import assert_same_run, lines
from e2e_scenarios import save_model, scenario, train

import rlcore
from rlcore.cli import main
from rlcore.models.policy import ModelPolicy
from rlcore.ranks import Ranks
from rlcore.testing.children import call_on_two_ranks

__all__ = ["plugins"]  # a fixture

ON = {"run": {"steps": 5, "profile": True}}
WATCH = """
import time
ticks = []

@hookimpl
def on_step(run, metrics):
    ticks.append(time.perf_counter())
"""
STRANGER = """
import torch


class Own:
    needs = ("prompts", "reward_fn")
    default_budget = {"steps": 3}

    def __init__(self, config, run):
        self.run, self.model = run, run.build_policy()
        self.optimizer = torch.optim.SGD(self.model.module.parameters(), lr=1e-2)

    def steps(self):
        while True:
            prompts = self.run.prompts[:8]
            batch = self.run.sample(prompts)
            scores = self.run.score(prompts, batch).scores
            with torch.no_grad():
                self.model.score(batch)
            loss = -(self.model.score(batch).logprobs.sum(1) * scores).mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            yield {"loss/own": float(loss.detach())}

    def policy(self):
        return self.model

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@hookimpl
def register_trainers(register):
    register("own", Own)
"""


def told(run: Path) -> dict[str, Any]:
    """Read a run's profile, and check what every profile keeps to."""
    profile: dict[str, Any] = json.loads((run / "profile/phases.json").read_text())
    for name in ("steps", "first", "around"):
        stretch = profile[name]
        top = sum(row["total_s"] for row in stretch["phases"] if len(row["path"]) == 1)
        own = sum(row["self_s"] for row in stretch["phases"])
        assert top + stretch["other_s"] == pytest.approx(stretch["wall_s"], abs=1e-6)
        assert own == pytest.approx(top, abs=1e-6)
        assert all(0 <= row["self_s"] <= row["total_s"] for row in stretch["phases"] + stretch["beside"])
        assert stretch["other_s"] >= 0
    return profile


def names(stretch: dict[str, Any]) -> set[str]:
    return {"/".join(row["path"]) for row in stretch["phases"]}


def check_trace(run: Path) -> dict[str, list[tuple[float, float]]]:
    """Check that every event of the driving thread lies in what encloses it; return the spans by name."""
    events = [e for e in json.loads((run / "profile/trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
    spans: dict[str, list[tuple[float, float]]] = {}
    open_: list[float] = []
    for event in events:
        assert {"name", "cat", "pid", "tid", "ts", "dur"} <= event.keys()
        begun, ended = event["ts"], event["ts"] + event["dur"]
        spans.setdefault(event["name"], []).append((begun, ended))
        if event["tid"] == 0:
            while open_ and open_[-1] <= begun + 1e-6:
                open_.pop()
            assert not open_ or ended <= open_[-1] + 1e-6, event
            open_.append(ended)
    return spans


COMMON = {"log", "log/rlcore:jsonl", "hooks", "hooks/acme-watch:main", "evaluate", "evaluate/generate", "checkpoint"}
COMMON |= {"trainer", "driver"}
SAMPLED = {"generate", "reward", "reward/reward functions"}
LEARNED = {"batches", "update", "update/forward", "update/backward", "optimizer", "metrics"}


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
    # Nothing is due after the first step and the last one, so steps 2 to 5 are what lies between the ends of 1 and 5.
    run = {"steps": 5, "profile": True}
    given = scenario(name, tmp_path, "run", {"run": run})
    if trainer == "own":
        plugins.install("acme-own", STRANGER)
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
        # A sample's first letter is its prompt, and is read but not chosen; the last batch of a pass is smaller.
        assert tokens["update"] == sum(learned[1:]) + 5 + 5 + 5 + 3
    else:
        assert tokens["generate"] > 0
        assert tokens["update"] > 0
    spans = check_trace(tmp_path / "run")
    assert len(spans["hooks"]) == len(spans["step 5"]) * 5


def test_rewards_asked_for_while_sampling_have_a_track_of_their_own(tmp_path: Path) -> None:
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
    assert beside["calls"] == 2 * 3  # 10 rollouts by 4, in each of steps 2 and 3
    assert beside["total_s"] >= 6 * 0.02
    assert {"generate", "generate/reward", "reward"} <= names(profile["steps"])  # the last two: spelling out, waiting
    trace = json.loads((tmp_path / "run/profile/trace.json").read_text())["traceEvents"]
    tracks = {event["args"]["name"]: event["tid"] for event in trace if event["ph"] == "M"}
    assert {tracks[name] for name in threads - {"MainThread"}} == {
        event["tid"] for event in trace if event["name"] == "reward functions" and event["tid"] > 0
    }
    check_trace(tmp_path / "run")


@pytest.mark.parametrize("name", ["ppo_config", "sft_config"])
def test_a_profile_changes_nothing_but_what_is_printed_and_one_folder(
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
    assert "_untimed" not in vars(type(result.policy))
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


def test_a_profile_that_there_is_no_room_for_ends_no_run(
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


def test_a_run_that_goes_on_profiles_what_it_does_anew(tmp_path: Path) -> None:
    train("sft_config", tmp_path, "run", {"run": {"steps": 2}})
    train("sft_config", tmp_path, "run", {"run": {"steps": 6, "resume": "auto", "profile": True}})
    profile = told(tmp_path / "run")
    assert [profile[name]["first_step"] for name in ("first", "steps")] == [3, 4]
    assert profile["steps"]["last_step"] == 6
    assert len(lines(tmp_path / "run/metrics.jsonl")) == 9


def in_company(folder: str) -> list[bool]:
    """Train with a profile; return of each rank whether the policy is of the class it was built of again."""
    result = train("ppo_plain", Path(folder), "run", {"run": {"steps": 3, "profile": True}})
    ranks: Ranks = result.run.ranks
    return ranks.gather([type(result.policy) is ModelPolicy])


def test_of_two_ranks_the_first_profiles(tmp_path: Path) -> None:
    untimed = call_on_two_ranks("test_profiling:in_company", {"folder": str(tmp_path)}, what="a profile of two ranks")
    assert untimed == [True, True]
    assert {"generate", "update/forward", "evaluate", "gather"} <= names(told(tmp_path / "run")["steps"])
    assert (tmp_path / "run/profile/table.txt").read_text().startswith("where the time of steps 2 to 3 went")
    check_trace(tmp_path / "run")


def test_operators_lie_among_the_phases_in_a_trace_of_their_own(tmp_path: Path) -> None:
    train("sft_plain", tmp_path, "run", {"run": {"steps": 5, "profile": "torch"}, "eval": {"every": 0}})
    profile = told(tmp_path / "run")
    assert (profile["first"]["last_step"], profile["steps"]["first_step"], profile["steps"]["last_step"]) == (1, 4, 5)
    events = json.loads((tmp_path / "run/profile/operators.json").read_text())["traceEvents"]
    (update, *rest) = [event for event in events if event["name"] == "update" and event["cat"] == "user_annotation"]
    assert len(rest) == 3  # two micro-batches, two steps
    within = [e["name"] for e in events if e.get("cat") == "cpu_op" and 0 <= e["ts"] - update["ts"] <= update["dur"]]
    assert "aten::embedding" in within


def test_a_run_of_one_step_says_that_no_operators_were_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train("sft_plain", tmp_path, "run", {"run": {"steps": 1, "profile": "torch"}})
    assert "no operators were recorded" in capsys.readouterr().err
    assert not (tmp_path / "run/profile/operators.json").exists()


def test_the_command_line_profiles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, file = save_model(tmp_path / "base"), str(tmp_path / "run.yaml")
    values = {"model": {"path": str(base)}, "trainer": {"name": "sft", "batch_size": 2},
              "data": {"samples": ["abc", "bcd", "cde"]}, "run": {"root": str(tmp_path), "name": "run", "steps": 2},
              "loggers": []}  # fmt: skip
    Path(file).write_text(json.dumps(values))
    assert main(["train", file, "--profile"]) == 0
    assert capsys.readouterr().out.startswith("where the time of step 2 went")
    told(tmp_path / "run")
    assert "profile: true" in (tmp_path / "run/config.yaml").read_text()
    # What is said of the option itself counts.
    assert main(["train", file, "run.overwrite=true", "--profile", "run.profile=jax"]) == 1
    assert "run.profile = 'jax'" in capsys.readouterr().err
