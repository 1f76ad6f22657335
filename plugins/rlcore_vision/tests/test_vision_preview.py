"""`rlcore preview` of a run with images shows the rows that the run would read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from vision_making import picture, policy_of, prompts_of

from rlcore.cli import main

QUESTION = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what colour ?"}]}]


@pytest.mark.parametrize("architecture", ["vision_language", "vision_scorer"])
def test_rows_with_images_are_shown_as_a_run_reads_them(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    policy, _ = policy_of("llava")
    policy.save_pretrained(tmp_path / "model")
    picture(1).save(tmp_path / "1.png")
    answers = {name: [{"role": "assistant", "content": text}] for name, text in (("chosen", "red"), ("rejected", "no"))}
    is_scorer = architecture == "vision_scorer"
    rows = [{"prompt": QUESTION, "image": "1.png", **(answers if is_scorer else {})}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    trainer, source = ("reward", "samples") if is_scorer else ("grpo", "prompts")
    (tmp_path / "run.yaml").write_text(
        f"model: {{path: model, architecture: {architecture}}}\ntrainer: {{name: {trainer}}}\n"
        f"data: {{{source}: rows.jsonl}}\n"
    )
    assert main(["preview", "run.yaml"]) == 0
    shown = capsys.readouterr().out
    (prompt,) = prompts_of(policy, [{"prompt": QUESTION, "image": "1.png"}])
    num_answer = 2 if is_scorer else 0  # the word and the end of the turn
    assert f"{source}: 1 row\n" in shown
    assert f"tokens: {len(prompt.tokens) + num_answer} to" in shown
    assert "what·colour·?" in shown


@pytest.mark.slow
def test_a_run_with_images_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    policy_of("llava")[0].save_pretrained(tmp_path / "model")
    picture(1).save(tmp_path / "1.png")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": QUESTION, "image": "1.png"}))
    (tmp_path / "run.yaml").write_text(
        "model: {path: model}\ntrainer: {name: grpo, rollouts: 4, num_generations: 2}\ndata: {prompts: rows.jsonl}\n"
        "gen: {max_new_tokens: 3}\n"
    )
    assert main(["plan", "run.yaml", "data.reward_fn=builtins:len"]) == 0
    assert "at the peak" in capsys.readouterr().out
