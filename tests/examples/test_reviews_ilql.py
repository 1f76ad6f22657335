"""Test of the offline-learning example, run as users run it on generated reviews."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
WORDS = {1: ("lovely", "moving", "brilliant"), 0: ("dull", "tedious", "clumsy")}


@pytest.mark.nightly
def test_a_larger_beta_gives_more_favourable_reviews(tmp_path: Path) -> None:
    rows = [
        {"text": f"a film about {place} and its people is {WORDS[i % 2][i % 3]} {WORDS[i % 2][i % 3]}", "label": i % 2}
        for i, place in enumerate(["the sea", "a small town", "old friends", "the war"] * 50)
    ]
    (tmp_path / "reviews.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / "reviews_ilql.py", "reviews.jsonl", "--quick", "--epochs", "20"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    table = {float(beta): float(share) for beta, share in re.findall(r"│ (-?\d+) +│ (\d\.\d+) +│", done.stdout)}
    assert set(table) == {-8, -4, 0, 4, 8, 16}
    assert table[8] > table[0] + 0.2
    assert (tmp_path / "runs/reviews-ilql/model/config.json").exists()
