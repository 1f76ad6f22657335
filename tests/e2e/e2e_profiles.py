"""Invariants of every profile, and a profiled run of two ranks."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from e2e_scenarios import train

from rlcore.ranks import Ranks
from rlcore_transformers.models.policy import ModelPolicy


def told(run: Path) -> dict[str, Any]:
    """Load a run's profile, and check the invariants of every profile."""
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
    """Check that every event of the driving thread lies within its enclosing event; return the spans by name."""
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


def in_company(folder: str) -> list[tuple[str, bool]]:
    """Train with a profile; return each rank's output, and whether its policy is an instance of the built class."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        result = train("ppo_plain", Path(folder), "run", {"run": {"steps": 3, "profile": True}})
    ranks: Ranks = result.run.ranks
    return ranks.gather([(said.getvalue(), isinstance(result.policy, ModelPolicy))])
