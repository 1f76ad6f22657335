"""Runs on disk to report on, without training, and their pages."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from browser import ROOT

from rlcore._version import __version__
from rlcore.checkpoints.run_folder import RunDir
from rlcore.config import merge, unstructure
from rlcore.settings import TrainConfig
from rlcore_report.html_page import report_page

HOSTILE = "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'>\x1b[31m \u202e</script>"


HEADLINE = ("reward/mean", "rft/", "policy/ratio_mean")


def pictured_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder `runs` of the pictures of the docs: RLCORE_PICTURED_RUNS, or made-up ones in `folder`.

    It is below the current folder, so that pages show no other path. The run of the report is `randomwalks-ppo`; those
    that are compared begin with `lr-`.
    """
    root = folder / "runs"
    if "RLCORE_PICTURED_RUNS" in os.environ:
        root = ROOT / os.environ["RLCORE_PICTURED_RUNS"]
    else:
        make_run(root / "randomwalks-ppo", steps=20)
        for rate, seed in itertools.product((1e-4, 5e-4), range(3)):
            optimizer = {"optimizer": {"lr": rate}}
            make_run(root / f"lr-{rate}-seed-{seed}", level=1e3 * rate + seed, run={"seed": seed}, trainer=optimizer)
    monkeypatch.chdir(root.parent)
    return Path(root.name)


def make_run(folder: Path, *, steps: int = 40, level: float = 1.0, **sections: Any) -> Path:
    """Write a run's folder: a reward that rises, an entropy that collapses, evaluations, and rollouts in groups."""
    folder.mkdir(parents=True)
    run, changes = (
        RunDir(folder),
        {"run": {"name": folder.name, "steps": steps}, "model": {"path": "tiny"}, "trainer": {"name": "ppo"}},
    )
    config = merge(merge(unstructure(TrainConfig()), changes), sections)
    run.write_config(config, {"rlcore": __version__}, [f"headline {' '.join(HEADLINE)}"])
    write_lines(run.metrics, metrics(steps, level))
    run.write_end(steps, "finished", f"all {steps} steps")
    rows = []
    for step in (0, steps // 2, steps):
        for i, prompt in enumerate(["Name a colour.", "Name a river.", "Name a city."]):
            rows.append({
                "step": step, "prompt": f"<|user|>{prompt}", "messages": [{"role": "user", "content": prompt}],
                "output": f"answer {i} of step {step}", "length": 4, "ended": i > 0, "reward": level * (step + i / 10),
            })  # fmt: skip
    write_lines(run.completions, rows)
    write_lines(run.rollouts, [
        {"step": step, "prompt": f"{step} + 2 =", "output": f" {step + 2 + i}", "length": 1, "ended": True,
         "group": step % 3, "reward": float(i == 0), "advantage": 1.0 - i}
        for step in range(1, steps + 1) for i in range(4)
    ])  # fmt: skip
    return folder


def metrics(steps: int, level: float) -> list[dict[str, float]]:
    rows = [{"step": 0, "eval/reward/mean": 0.1 * level}]
    for step in range(1, steps + 1):
        done = step / steps
        rows.append({
            "step": step, "reward/mean": level * done + math.sin(step) / 20, "reward/std": 0.3, "kl/mean": 2 * done,
            "policy/entropy": 2 * math.exp(-8 * done), "policy/ratio_mean": 1 + math.sin(step) / 100,
            "response/length_mean": 12.0 + done, "response/truncated_fraction": 0.1, "loss/policy": -0.01,
            "loss/value": 1 - done / 2, "value/explained_variance": done, "lr": 1e-4,
            "grad/norm": 1 + math.cos(step) / 4, "progress/epoch": done, "time/step_s": 0.5,
            "rft/kept_fraction": 0.1, "q/mean": 0.5, "perf/tokens_per_s": 900.0, "perf/peak_memory_gb": 1.2,
        })  # fmt: skip
        if step in (steps // 2, steps):
            rows.append({"step": step, "eval/reward/mean": level * (step + 0.1)})
    return rows


def write_lines(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def address_of(folders: Sequence[Path], file: Path) -> str:
    file.write_text(report_page(folders))
    return file.as_uri()
