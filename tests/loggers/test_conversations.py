"""Laws of conversations in rows: people see messages, and files have both the messages and the rendered prompt."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from console_screens import make_screen
from transformers import GPT2Config

import rlcore
from rlcore.cli import main
from rlcore.loggers import display_row
from rlcore.training.rollout import prompt_columns
from rlcore.types import Prompt
from rlcore_report.samples_on_page import read_samples

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "What is it?"}, {"type": "image"}]},
    {"role": "assistant", "content": None, "tool_calls": [{"name": "look"}]},
]


def test_messages_replace_the_rendered_prompt() -> None:
    row = {"prompt": "<|user|>...", "messages": CHAT, "output": "A cat.", "reward": 1.0}
    assert display_row(row) == {
        "prompt": 'system: Be brief.\nuser: What is it?\n[image]\nassistant: [{"name": "look"}]',
        "output": "A cat.", "reward": 1.0,
    }  # fmt: skip
    assert "messages" in row
    for odd in (None, "text", [], ["text"], 3):
        assert display_row({"prompt": "p", "messages": odd}) == {"prompt": "p"}
    for odd in ("1", [], {}, True, None):
        turn = {"role": "tool", "content": "3", "reward": odd}
        assert display_row({"transcript": [turn]})["output"] == ("tool (+1): 3" if odd is True else "tool: 3")
    assert display_row({"transcript": 3}) == {"output": ""}


def test_messages_that_json_cannot_represent_are_written_as_text() -> None:
    picture = {"type": "image", "image": object()}
    kept = prompt_columns(Prompt("p", (1,), {}, [{"role": "user", "content": [picture], "name": None}]))
    assert kept == {"prompt": "p", "messages": [{"role": "user", "content": "[image]"}]}
    plain = [{"role": "user", "content": [{"type": "text", "text": "t"}]}]
    assert prompt_columns(Prompt("p", (1,), {}, plain))["messages"] == plain
    assert prompt_columns(Prompt("p", (1,))) == {"prompt": "p"}


def test_a_run_on_conversations_shows_messages_everywhere(
    tmp_path: Path, chat_tokenizer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    chats = [[{"role": "user", "content": text}] for text in ("ab", "ba")]
    model = GPT2Config(vocab_size=len(chat_tokenizer), n_positions=64, n_embd=16, n_layer=1, n_head=2)
    result = rlcore.train(
        model, tokenizer=chat_tokenizer, trainer={"name": "ppo", "rollouts": 2, "batch_size": 2},
        prompts=chats, eval_prompts=[*chats, "no chat"], reward_fn=lambda outputs: [1.0] * len(outputs),
        gen={"max_new_tokens": 2}, run={"root": str(tmp_path), "name": "mine", "steps": 1}, loggers=["console"],
    )  # fmt: skip
    printed = capsys.readouterr().out
    assert "user: ab" in printed
    assert "<|user|>" not in printed
    for name in ("completions", "rollouts"):
        row = json.loads((result.run_dir / f"{name}.jsonl").read_text().splitlines()[0])
        assert row["messages"] == [{"role": "user", "content": row["prompt"].split("<|user|>")[1][:2]}]
        assert read_samples(result.run_dir / f"{name}.jsonl").rows[0].messages == [
            ("user", row["messages"][0]["content"])
        ]
        assert main(["rollouts", str(result.run_dir), *(["--completions"] if name == "completions" else [])]) == 0
        table = capsys.readouterr().out
        assert "user: ab" in table
        assert "<|user|>" not in table


def test_the_console_shows_the_last_turns_of_a_long_conversation_with_their_roles(tmp_path: Path) -> None:
    screen = make_screen(tmp_path, width=100)
    turns = [{"role": "user", "content": f"{i}{'x' * 300}end"} for i in range(5)]
    screen.logger.completions(1, [{"prompt": "<|user|>", "messages": turns, "output": "So.", "reward": 0.0}])
    shown = [line.split("│")[1].strip() for line in screen.lines if line.count("│") > 2]
    assert shown[0] == "…"
    assert len(shown) == 5
    assert all(re.fullmatch(r"user: …x+end", line) for line in shown[1:])
