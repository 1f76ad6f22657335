"""Tests of the preference benchmark: its pairs, and one short run of each trainer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from benchmarks import texts
from benchmarks.places import HERE
from rlcore_tools.bench.duel import run_python


def write_texts(folder: Path) -> None:
    """Write ten reviews, favourable and others in turn, and ten exercises."""
    reviews = [{"text": f"film {i}", "label": i % 2} for i in range(10)]
    exercises = [{"question": f"{i} + 1 ?", "answer": str(i + 1)} for i in range(10)]
    for name, rows in (("reviews", reviews), ("gsm8k", exercises)):
        (folder / texts.FILES[name]).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_favourable_review_is_preferred_to_another(tmp_path: Path) -> None:
    write_texts(tmp_path)
    rows = texts.read_preferences(tmp_path, 2)
    assert [(row["chosen"], row["rejected"]) for row in rows] == [(" film 1", " film 0"), (" film 3", " film 2")]
    assert len(texts.read_preferences(tmp_path, 100)) == 5


@pytest.mark.nightly
@pytest.mark.parametrize("trainer", ["dpo", "reward"])
def test_a_short_run_reports_speed_and_memory(tmp_path: Path, trainer: str) -> None:
    write_texts(tmp_path)
    model = str(tmp_path / "model")
    texts.make(model, tmp_path)
    line = run_python(
        "train_preferences.py", model, str(tmp_path), trainer, "--steps", "1", "--precompute", scripts=HERE
    )
    found = json.loads(line)
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = texts.read_preferences(tmp_path, 5)
    answers = [row["prompt"] + row[answer] for row in rows for answer in ("chosen", "rejected")]
    assert found["tokens"] == sum(len(tokenizer(answer)["input_ids"]) + 1 for answer in answers)
    assert found["tokens_per_cpu_s"] > 0
    assert found["peak_above_imports_mb"] == found["peak_rss_mb"] - found["imports_rss_mb"] > 0
