"""Tests of the profile's output: the table, the JSON numbers and the trace."""

from __future__ import annotations

import json

import pytest
from hand_profile import Clock, assert_nested, clock, one_step, profile

from rlcore_report.profile.recorder import TRACED, Profile
from rlcore_report.profile.session import as_json, as_trace, make_table

__all__ = ["clock", "profile"]  # fixtures


TABLE = """\
where the time of steps 2 to 3 went: 0.033 s a step
phase                                  s    self s   ms/step    share   calls    tokens/s
evaluate                           0.040     0.022     20.00   60.6 %       2
  generate                         0.018     0.016      9.00   27.3 %       4
    score                          0.002     0.002      1.00    3.0 %       2
generate                           0.020     0.014     10.00   30.3 %       2
  score                            0.006     0.006      3.00    9.1 %       2        4000
other                              0.006     0.006      3.00    9.1 %
all                                0.066     0.066     33.00  100.0 %
step 1, the first: 0.033 s (evaluate 0.020, generate 0.010, other 0.003)
outside these steps: 0.007 s (checkpoint 0.007, other 0.000)
"""


def three_steps(profile: Profile, clock: Clock) -> None:
    for done in range(3):
        profile.begin_step(done)
        one_step(profile, clock)
    profile.end_steps(3)
    with profile.phase("checkpoint"):
        clock.spend(7)
    profile.end_steps(3)


def test_the_table_of_a_profile_has_the_expected_text(profile: Profile, clock: Clock) -> None:
    three_steps(profile, clock)
    assert make_table(profile) == TABLE


def test_the_table_covers_runs_of_one_step_and_of_none(profile: Profile, clock: Clock) -> None:
    profile.end_steps(0)
    assert make_table(profile).splitlines()[0] == "no step was completed"
    profile.begin_step(4)
    one_step(profile, clock)
    profile.end_steps(5)
    assert make_table(profile).splitlines()[0] == "where the time of step 5 went: 0.033 s a step"


def test_the_json_of_a_profile_has_the_numbers_of_its_table(profile: Profile, clock: Clock) -> None:
    three_steps(profile, clock)
    told = json.loads(as_json(profile))
    assert told["schema"] == 1
    assert {key: told["steps"][key] for key in ("num_steps", "first_step", "last_step", "wall_s", "other_s")} == {
        "num_steps": 2, "first_step": 2, "last_step": 3, "wall_s": 0.066, "other_s": 0.006,
    }  # fmt: skip
    assert {"path": ["evaluate", "generate"], "total_s": 0.018, "self_s": 0.016, "calls": 4, "tokens": 0} in told[
        "steps"
    ]["phases"]
    (saved,) = told["around"]["phases"]
    assert saved == {"path": ["checkpoint"], "total_s": 0.007, "self_s": 0.007, "calls": 1, "tokens": 0}


def test_the_trace_has_an_event_for_every_phase_that_ran(profile: Profile, clock: Clock) -> None:
    clock.spend(1)
    three_steps(profile, clock)
    trace = json.loads(as_trace(profile))
    assert_nested(trace)
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert [(event["name"], event["ts"], event["dur"]) for event in events[:8]] == [
        ("step 1", 1000, 33000), ("generate", 1000, 10000), ("score", 7000, 3000), ("evaluate", 13000, 20000),
        ("generate", 13000, 5000), ("generate", 29000, 4000), ("score", 32000, 1000), ("step 2", 34000, 33000),
    ]  # fmt: skip
    assert {"name": "thread_name", "ph": "M", "pid": events[0]["pid"], "tid": 0, "args": {"name": "MainThread"}} in (
        trace["traceEvents"]
    )


def test_awaited_calls_are_on_no_track_of_the_trace(profile: Profile, clock: Clock) -> None:
    profile.begin_step(0)
    clock.spend(1)
    with profile.awaited("judge"):
        clock.spend(2)
        with profile.awaited("judge"):
            clock.spend(4)
    profile.end_steps(1)
    trace = json.loads(as_trace(profile))
    events = [(e["name"], e["ph"], e["ts"]) for e in trace["traceEvents"] if e.get("cat") == "awaited"]
    assert events == [("judge", "b", 1000), ("judge", "e", 7000), ("judge", "b", 3000), ("judge", "e", 7000)]
    ids = [e["id"] for e in trace["traceEvents"] if e.get("cat") == "awaited"]
    assert ids[0] == ids[1] != ids[2] == ids[3]
    lines = make_table(profile).splitlines()
    assert lines[-2] == "concurrent, not part of the sum:"
    assert lines[-1].split() == ["judge", "0.010", "0.010", "10.00", "142.9", "%", "2"]


def test_the_check_of_nested_traces_notices_overlapping_events() -> None:
    events = [{"ph": "X", "pid": 1, "tid": 0, "ts": ts, "dur": 10} for ts in (0, 5)]
    with pytest.raises(AssertionError):
        assert_nested({"traceEvents": events})


def test_the_trace_of_a_long_run_holds_its_first_steps(profile: Profile, clock: Clock) -> None:
    for done in range(100):
        profile.begin_step(done)
        one_step(profile, clock)
    profile.end_steps(100)
    names = [event.name for event in profile.events]
    assert sum(name.startswith("step") for name in names) == TRACED
    assert len(names) == 7 * TRACED
