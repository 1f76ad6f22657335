"""Tests that losses equal those that TRL's trainers had on the same rows, or differ as the documentation states.

trl_losses.json holds TRL's; trl_losses.py writes it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, GPT2LMHeadModel

import rlcore
from benchmarks import loss_task
from benchmarks.places import HERE, ROOT

RECORDED = json.loads((HERE / "trl_losses.json").read_text(encoding="utf-8"))
TRAINERS: dict[str, dict[str, Any]] = {
    "sft on completions": {"name": "sft"},
    "sft on texts": {"name": "sft"},
    "sft on conversations": {"name": "sft"},
    "dpo": {"name": "dpo", "beta": loss_task.BETA},
    "ipo": {"name": "dpo", "loss": "ipo", "beta": loss_task.BETA},
    "hinge": {"name": "dpo", "loss": "hinge", "beta": loss_task.BETA},
    "kto": {"name": "dpo", "loss": "kto", "beta": loss_task.BETA},
    "reward model": {"name": "reward"},
}
DIFFERENT = ("sft on texts", "sft on conversations")


def train(case: str, folder: Path) -> list[float]:
    """Return the loss of each step of a comparison."""
    rows = loss_task.CASES[case]
    loss_task.write_model(folder / "model", is_scorer=case == "reward model")
    optimizer = {"lr": loss_task.LR, "weight_decay": 0.0, "max_grad_norm": loss_task.MAX_GRAD_NORM}
    rlcore.train(
        str(folder / "model"),
        trainer={**TRAINERS[case], "batch_size": len(rows), "optimizer": optimizer},
        samples=rows,
        run={"root": str(folder), "name": "run", "steps": loss_task.STEPS},
        loggers=[],
    )
    lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["loss/total"] for line in lines]


@pytest.mark.parametrize("case", [case for case in TRAINERS if case not in DIFFERENT])
def test_losses_of_two_steps_are_those_of_trl(tmp_path: Path, case: str) -> None:
    found = train(case, tmp_path)
    assert found == pytest.approx(RECORDED["losses"][case], rel=1e-6)
    assert found[0] != found[1]  # the step changed the weights


def test_trl_divides_the_loss_of_plain_texts_by_first_tokens_too(tmp_path: Path) -> None:
    found = train("sft on texts", tmp_path)
    tokens = [len(row["text"].split()) + 1 for row in loss_task.TEXTS]  # with EOS
    share = (sum(tokens) - len(tokens)) / sum(tokens)
    assert [loss * share for loss in found] == pytest.approx(RECORDED["losses"]["sft on texts"], rel=1e-6)


def test_trl_trains_the_line_break_after_an_assistants_turn_too(tmp_path: Path) -> None:
    found = train("sft on conversations", tmp_path)
    model, logprobs = GPT2LMHeadModel.from_pretrained(tmp_path / "model"), []
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    for row in loss_task.CONVERSATIONS:
        ids = tokenizer(tokenizer.apply_chat_template(row["messages"], tokenize=False), return_tensors="pt").input_ids
        with torch.no_grad():
            all_logprobs = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        logprobs.append(all_logprobs[-len(row["messages"][1]["content"].split()) - 2 :])  # the turn, its end, "\n"
    assert found[0] == pytest.approx(-float(torch.cat([each[:-1] for each in logprobs]).mean()), rel=1e-6)
    assert RECORDED["losses"]["sft on conversations"][0] == pytest.approx(-float(torch.cat(logprobs).mean()), rel=1e-6)


@pytest.mark.parametrize("case", list(TRAINERS))
def test_the_documentation_quotes_the_measured_losses(tmp_path: Path, case: str) -> None:
    page = (ROOT / "docs" / "from-trl.md").read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.startswith(f"| {case} |")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    quoted = [float(number) for cell in cells[1:3] for number in cell.split(",")]
    assert quoted == pytest.approx([*RECORDED["losses"][case], *train(case, tmp_path)], abs=5.1e-5)
    assert f"TRL {RECORDED['trl']}" in page
