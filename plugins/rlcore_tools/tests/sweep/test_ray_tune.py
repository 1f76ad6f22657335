"""The example of the manual by which Ray Tune trains a population from the checkpoints of rlcore."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlcore.config import dump_yaml
from rlcore_testing.small import SAMPLES, make_gpt2, make_tokenizer

EXAMPLE = Path(__file__).parents[4] / "docs/examples/ray_tune.py"
QUIET = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}


@pytest.mark.nightly
def test_ray_tune_trains_a_population_from_our_checkpoints(tmp_path: Path) -> None:
    """The trial with the rate of 1e-5 is the worse one at step 2, and goes on from the other's checkpoint."""
    pytest.importorskip("ray.tune")
    make_gpt2().save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    values = {
        "model": {"path": str(tmp_path / "model")}, "trainer": {"name": "sft", "batch_size": 4},
        "data": {"samples": [list(sample) for sample in SAMPLES], "eval_samples": [["ab", "cde"]]},
        "run": {"steps": 4, "report": False}, "eval": {"every": 2}, "checkpoint": {"every": 2},
    }  # fmt: skip
    (tmp_path / "run.yaml").write_text(dump_yaml(values))
    given = {name: value for name, value in os.environ.items() if name not in {"WORLD_SIZE", "RAY_ADDRESS"}}
    found = subprocess.run(
        [sys.executable, EXAMPLE, "run.yaml"], cwd=tmp_path, env=given | QUIET, capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-3000:]
    rate, step, loss = found.stdout.splitlines()[-1].split()
    assert float(rate) > 1e-3
    assert step == "4"
    assert float(loss) > 0
    assert "perturb" in (found.stdout + found.stderr).lower()
