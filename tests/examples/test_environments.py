"""Tests of the examples with environments of other libraries, shortened."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


def test_alice_learns_the_form_of_answers_and_is_evaluated_on_other_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    import alice

    result = alice.train(0, epochs=1, steps=1, root=str(tmp_path))
    assert 0 <= result.metrics["eval/episode/success"] < 0.5
    rows = [json.loads(line) for line in (result.run_dir / "completions.jsonl").read_text().splitlines()]
    held_out, trained_on = {row["prompt"] for row in rows}, set(alice.questions())
    assert len(trained_on) > 600
    assert len(held_out) > 150
    assert not held_out & trained_on
    answers = [row["output"] for row in rows if row["step"] == 0]
    assert sum(answer.isdigit() for answer in answers) > 0.9 * len(answers)
    tokenizer = alice.make_tokenizer()
    for question in held_out:
        assert tokenizer.unk_token_id not in tokenizer(question)["input_ids"]
