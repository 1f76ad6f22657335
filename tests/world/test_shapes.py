"""Rows in the shapes of published data sets, from every kind of file: the texts they become, and what is named.

The texts were written for these tests; keys, roles and nesting are those of the data sets that a shape is named after.
Expected texts are rendered by hand: `told` writes ChatML, and `trained` are the runs of tokens in the loss.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import datasets
import pandas as pd
import pytest
from chat_turns import runs_of, tokenizer_for
from template_families import FAMILIES

from rlcore.errors import DataError
from rlcore.settings import DataConfig
from rlcore_reward.process_trainer import UNLABELLED, build_stepwise
from rlcore_transformers.data.pipelines import SAMPLES
from rlcore_transformers.data.prompts import build_prompts
from rlcore_transformers.data.samples import build_samples
from rlcore_transformers.preferences.preferences import build_preferences, build_unpaired

MAKES = {
    "samples": build_samples, "prompts": build_prompts, "preferences": build_preferences, "unpaired": build_unpaired,
    "stepwise": build_stepwise,
}  # fmt: skip
BEGIN, END = "<|im_start|>", "<|im_end|>"


def told(*turns: str) -> str:
    """Return a conversation in ChatML, of texts `role: content`."""
    return "".join(f"{BEGIN}{role}\n{text}{END}\n" for role, _, text in (turn.partition(": ") for turn in turns))


def asked(*turns: str) -> str:
    """Return the prompt from which the assistant's next turn is sampled."""
    return f"{told(*turns)}{BEGIN}assistant\n"


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def by(speaker: str, text: str, **more: Any) -> dict[str, Any]:
    return {"from": speaker, "value": text, **more}


@attrs.frozen
class Shape:
    """A row, what it becomes, and which keys are named because nothing reads them.

    Attributes:
        make: the pipeline.
        row: the row.
        made: of samples the whole text and the trained texts; of prompts the text and the columns; of preferences the
            prompt and both answers; of labelled answers the prompt, the answer and the label; of answers in steps the
            text and the steps with their labels.
        options: options of `data`.
        cells: options of `data` for the cells of CSV and TSV files, where lists and mappings are JSON.
        unread: keys that a warning names.
        is_plain: whether the tokenizer has no chat template; then every answer ends with <|eos|>.
    """

    make: str
    row: Mapping[str, Any]
    made: tuple[Any, ...]
    options: Mapping[str, Any] = attrs.field(factory=dict)
    cells: Mapping[str, Any] = attrs.field(factory=dict)
    unread: tuple[str, ...] = ()
    is_plain: bool = False


EOS = "<|eos|>"
TALK = [
    said("user", "Who are you?"),
    said("assistant", "A cat."),
    said("user", "And now?"),
    said("assistant", "Still."),
]
TOLD = told("user: Who are you?", "assistant: A cat.", "user: And now?", "assistant: Still.")
TURNS = [f"A cat.{END}", f"Still.{END}"]
KIND = said("system", "Be kind.")
SUM = told("user: What is 1 + 1?", "assistant: It is 2.")
IS_2 = [f"It is 2.{END}"]
LOOK = {
    "name": "look",
    "description": "Look.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"city": "Paris"}'}}
SEEN = {
    "samples": ["user: Rain?", 'assistant: <call>look {"city": "Paris"}</call>', "tool: sun", "assistant: No rain."],
}  # fmt: skip
STEPS_OF_JSON = {"column_types": {"completions": "json", "labels": "json"}}

SHAPES: dict[str, Shape] = {
    # OpenAI's chat, and data sets with its messages
    "openai chat": Shape(
        "samples", {"messages": [KIND, *TALK]}, (told("system: Be kind.") + TOLD, TURNS),
    ),
    "openai chat with weights": Shape(
        "samples",
        {"messages": [TALK[0], {**TALK[1], "weight": 0}, TALK[2], {**TALK[3], "weight": 1}]}, (TOLD, TURNS[1:]),
    ),
    "openai parts": Shape(
        "samples",
        {"messages": [
            said("user", [{"type": "text", "text": "What is 1 + 1?"}]),
            said("assistant", [{"type": "text", "text": "It is 2."}]),
        ]},
        (SUM, IS_2),
    ),
    "openai prompt and completion": Shape(
        "samples", {"prompt": "1 + 1 =", "completion": " 2"}, (f"1 + 1 = 2{EOS}", [f" 2{EOS}"]), is_plain=True
    ),
    "tulu 3": Shape(
        "samples", {"id": "a_1", "messages": TALK, "source": "cats"}, (TOLD, TURNS), unread=("id", "source")
    ),
    "no robots": Shape(
        "samples", {"prompt": "What is 1 + 1?", "prompt_id": "ab12", "messages": [
            said("user", "What is 1 + 1?"), said("assistant", "It is 2."),
        ], "category": "Sums"}, (SUM, IS_2), unread=("prompt", "prompt_id", "category"),
    ),
    "open-r1 traces": Shape(
        "samples",
        {"problem": "What is 1 + 1?", "solution": "2", "answer": "2", "messages": [
            said("user", "What is 1 + 1?"), said("assistant", "<think>\nOne more than 1.\n</think>\n\nIt is 2."),
        ], "generations": ["It is 2.", "It is 3."], "correctness_math_verify": [True, False]},
        (
            told("user: What is 1 + 1?", "assistant: <think>\nOne more than 1.\n</think>\n\nIt is 2."),
            [f"<think>\nOne more than 1.\n</think>\n\nIt is 2.{END}"],
        ),
        unread=("problem", "solution", "answer", "generations", "correctness_math_verify"),
    ),
    # ShareGPT and its dialects
    "sharegpt": Shape(
        "samples", {"id": "x_0", "conversations": [
            by("human", "Who are you?"), by("gpt", "A cat."), by("human", "And now?"), by("gpt", "Still."),
        ]}, (TOLD, TURNS), unread=("id",),
    ),
    "sharegpt with a system turn": Shape(
        "samples",
        {"conversations": [by("system", "Be kind."), by("human", "What is 1 + 1?"), by("gpt", "It is 2.")]},
        (told("system: Be kind.") + SUM, IS_2),
    ),
    "sharegpt with a system column": Shape(
        "samples", {"system": "Be kind.", "conversations": [by("human", "What is 1 + 1?"), by("gpt", "It is 2.")]},
        (told("system: Be kind.") + SUM, IS_2),
    ),
    "sharegpt user and assistant": Shape(
        "samples", {"conversations": [by("user", "What is 1 + 1?"), by("assistant", "It is 2.")]}, (SUM, IS_2)
    ),
    "sharegpt chatgpt and bing": Shape(
        "samples", {"conversations": [by("human", "What is 1 + 1?"), by("chatgpt", "It is 2.")]}, (SUM, IS_2)
    ),
    "slim orca": Shape(
        "samples", {"conversations": [
            by("system", "Be kind.", weight=None), by("human", "What is 1 + 1?", weight=0.0),
            by("gpt", "It is 2.", weight=1.0),
        ]}, (told("system: Be kind.") + SUM, IS_2),
    ),
    "role and content under conversations": Shape("samples", {"conversations": TALK}, (TOLD, TURNS)),
    "from and value under messages": Shape(
        "samples", {"messages": [by("human", "What is 1 + 1?"), by("gpt", "It is 2.")]}, (SUM, IS_2)
    ),
    "role and value": Shape(
        "samples", {"conversations": [
            {"role": "user", "value": "What is 1 + 1?"}, {"role": "assistant", "value": "It is 2."},
        ]}, (SUM, IS_2),
    ),
    "conversation, renamed": Shape(
        "samples", {"conversation": TALK}, (TOLD, TURNS), options={"columns": {"messages": "conversation"}}
    ),
    "ultrachat, renamed": Shape(
        "samples", {"id": "3", "data": ["1 + 1 =", " 2", " and 2 + 2 =", " 4"]},
        (f"1 + 1 = 2{EOS} and 2 + 2 = 4{EOS}", [f" 2{EOS}", f" 4{EOS}"]), options={"columns": {"messages": "data"}},
        unread=("id",), is_plain=True,
    ),
    "magpie": Shape(
        "samples", {"uuid": "u", "instruction": "What is 1 + 1?", "response": "It is 2.", "conversations": [
            by("human", "What is 1 + 1?"), by("gpt", "It is 2."),
        ]}, (SUM, IS_2), unread=("uuid", "instruction", "response"),
    ),
    # Alpaca, Dolly, and questions with answers
    "alpaca": Shape(
        "samples", {"instruction": "What is 1 + 1?", "input": "", "output": "It is 2."}, (SUM, IS_2)
    ),
    "alpaca with text": Shape(
        "samples", {"instruction": "What is 1 + 1?", "input": "", "output": "It is 2.", "text": "Below is ..."},
        (SUM, IS_2), unread=("text",),
    ),
    "alpaca with input": Shape(
        "samples", {"instruction": "Add.", "input": "1 and 1", "output": "It is 2."},
        (told("user: Add.\n\n1 and 1", "assistant: It is 2."), IS_2),
    ),
    "alpaca with system": Shape(
        "samples", {"instruction": "What is 1 + 1?", "input": "", "output": "It is 2.", "system": "Be kind."},
        (told("system: Be kind.") + SUM, IS_2),
    ),
    "alpaca with history": Shape(
        "samples",
        {"instruction": "And now?", "input": "", "output": "Still.", "history": [["Who are you?", "A cat."]]},
        (TOLD, TURNS),
    ),
    "alpaca without a template": Shape(
        "samples", {"instruction": "Add.", "input": "1 and 1", "output": "2"},
        (f"### Instruction:\nAdd.\n\n### Input:\n1 and 1\n\n### Response:\n2{EOS}", [f"2{EOS}"]), is_plain=True,
    ),
    "dolly": Shape(
        "samples",
        {"instruction": "Who is it?", "context": "The cat sat.", "response": "The cat.", "category": "closed_qa"},
        (told("user: Who is it?\n\nThe cat sat.", "assistant: The cat."), [f"The cat.{END}"]), unread=("category",),
    ),
    "gsm8k": Shape(
        "samples", {"question": "What is 1 + 1?", "answer": "It is 2."}, (SUM, IS_2),
        options={"columns": {"prompt": "question", "output": "answer"}, "as_messages": True},
    ),
    "metamath": Shape(
        "samples", {"query": "1 + 1 =", "response": " 2", "type": "GSM"}, (f"1 + 1 = 2{EOS}", [f" 2{EOS}"]),
        options={"columns": {"prompt": "query"}}, unread=("type",), is_plain=True,
    ),
    "open orca": Shape(
        "samples",
        {"id": "t.1", "system_prompt": "Be kind.", "question": "What is 1 + 1?", "response": "It is 2."},
        (told("system: Be kind.") + SUM, IS_2),
        options={"columns": {"prompt": "question"}, "as_messages": True}, unread=("id",),
    ),
    "texts": Shape(
        "samples", {"text": "The cat sat."}, (f"The cat sat.{EOS}", [f"he cat sat.{EOS}"]), is_plain=True
    ),
    "texts with their source": Shape(
        "samples", {"text": "The cat sat.", "meta": {"url": "a.b"}, "id": 7},
        (f"The cat sat.{EOS}", [f"he cat sat.{EOS}"]), unread=("meta", "id"), is_plain=True,
    ),
    "trl prompt and completion": Shape(
        "samples", {"prompt": TALK[:3], "completion": TALK[3:]}, (TOLD, TURNS[1:]),
    ),
    "numina": Shape(
        "samples", {"source": "sums", "problem": "What is 1 + 1?", "solution": "2", "messages": [
            said("user", "What is 1 + 1?"), said("assistant", "It is 2."),
        ]}, (SUM, IS_2), unread=("source", "problem", "solution"),
    ),
    "wild chat": Shape(
        "samples", {"conversation_hash": "a", "conversation": [
            said("user", "What is 1 + 1?", country="France"), said("assistant", "It is 2.", country=None),
        ]}, (SUM, IS_2), options={"columns": {"messages": "conversation"}}, unread=("conversation_hash",),
    ),
    "lima": Shape(
        "samples", {"conversations": ["What is 1 + 1?", "It is 2."], "source": "web"}, (SUM, IS_2),
        options={"as_messages": True}, unread=("source",),
    ),
    "lima without a template": Shape(
        "samples", {"conversations": ["1 + 1 =", " 2"], "source": "web"}, (f"1 + 1 = 2{EOS}", [f" 2{EOS}"]),
        unread=("source",), is_plain=True,
    ),
    "help steer": Shape(
        "samples", {"prompt": "What is 1 + 1?", "response": "It is 2.", "helpfulness": 4, "verbosity": 1},
        (SUM, IS_2), options={"as_messages": True}, unread=("helpfulness", "verbosity"),
    ),
    "aya": Shape(
        "samples", {"inputs": "1 + 1 =", "targets": " 2", "language": "eng"}, (f"1 + 1 = 2{EOS}", [f" 2{EOS}"]),
        options={"columns": {"prompt": "inputs", "output": "targets"}}, unread=("language",), is_plain=True,
    ),
    "firefly": Shape(
        "samples", {"kind": "Sums", "input": "What is 1 + 1?", "target": "It is 2."}, (SUM, IS_2),
        options={"columns": {"prompt": "input", "output": "target"}, "as_messages": True}, unread=("kind",),
    ),
    "open hermes": Shape(
        "samples", {"idx": None, "system_prompt": None, "source": "web", "conversations": [
            by("human", "What is 1 + 1?", weight=None), by("gpt", "It is 2.", weight=None),
        ]}, (SUM, IS_2), unread=("source",),
    ),
    "glaive": Shape(
        "samples", {"system": "SYSTEM: Be kind.", "chat": "USER: Hi.\n\n\nASSISTANT: Hello. <|endoftext|>"},
        (
            f"USER: Hi.\n\n\nASSISTANT: Hello. <|endoftext|>{EOS}",
            [f"SER: Hi.\n\n\nASSISTANT: Hello. <|endoftext|>{EOS}"],
        ),
        options={"columns": {"text": "chat"}}, unread=("system",), is_plain=True,
    ),
    "anthropic messages": Shape(
        "samples", {"system": "Be kind.", "messages": [
            said("user", [{"type": "text", "text": "What is 1 + 1?"}]),
            said("assistant", [{"type": "text", "text": "It is 2."}]),
        ]}, (told("system: Be kind.") + SUM, IS_2),
    ),
    "fireworks": Shape(
        "samples",
        {"messages": [TALK[0], {**TALK[1], "weight": 0}, TALK[2], {**TALK[3], "weight": None}]}, (TOLD, TURNS[1:]),
    ),
    "chatml in a text": Shape(
        "samples", {"text": SUM.rstrip()}, (SUM.rstrip() + EOS, [SUM.rstrip().removeprefix(BEGIN) + EOS])
    ),
    # Calls of functions
    "openai tools": Shape(
        "samples", {"messages": [
            said("user", "Rain?"), said("assistant", None, tool_calls=[CALL]),
            said("tool", "sun", tool_call_id="call_1"), said("assistant", "No rain."),
        ], "tools": [{"type": "function", "function": LOOK}]}, (told(*SEEN["samples"]), [
            f'<call>look {{"city": "Paris"}}</call>{END}', f"No rain.{END}",
        ]),
    ),
    "sharegpt tools": Shape(
        "samples", {"conversations": [
            by("human", "Rain?"), by("function_call", '{"name": "look", "arguments": {"city": "Paris"}}'),
            by("observation", "sun"), by("gpt", "No rain."),
        ], "tools": json.dumps([LOOK])}, (told(*SEEN["samples"]), [
            f'<call>look {{"city": "Paris"}}</call>{END}', f"No rain.{END}",
        ]),
    ),
    "openai functions": Shape(
        "samples", {"messages": [
            said("user", "Rain?"),
            said("assistant", None, function_call={"name": "look", "arguments": '{"city": "Paris"}'}),
            said("function", "sun", name="look"), said("assistant", "No rain."),
        ], "functions": [LOOK]}, (told(*SEEN["samples"]).replace(f"{BEGIN}tool", f"{BEGIN}function"), [
            f'<call>look {{"city": "Paris"}}</call>{END}', f"No rain.{END}",
        ]), unread=("functions",),
    ),
    "glaive tool calls": Shape(
        "samples", {"conversations": [
            by("human", "Rain?"), by("function_call", '{"name": "look", "arguments": {"city": "Paris"}}'),
            by("function_response", "sun"), by("gpt", "No rain."),
        ], "tools": json.dumps([LOOK])}, (told(*SEEN["samples"]), [
            f'<call>look {{"city": "Paris"}}</call>{END}', f"No rain.{END}",
        ]),
    ),
    "hermes function calling": Shape(
        "samples", {"id": "a", "conversations": [
            by("system", "Be kind."), by("human", "Rain?"), by("gpt", "<tool_call>look</tool_call>"), by("tool", "sun"),
            by("gpt", "No rain."),
        ], "category": "Weather"}, (
            told("system: Be kind.", "user: Rain?", "assistant: <tool_call>look</tool_call>", "tool: sun",
                 "assistant: No rain."),
            [f"<tool_call>look</tool_call>{END}", f"No rain.{END}"],
        ), unread=("id", "category"),
    ),
    # Prompts to sample from
    "openai prompts": Shape(
        "prompts", {"prompt": [KIND, *TALK[:1]]}, (asked("system: Be kind.", "user: Who are you?"), {})
    ),
    "verl": Shape(
        "prompts",
        {"data_source": "sums", "prompt": [said("user", "What is 1 + 1?")], "ability": "math",
         "reward_model": {"style": "rule", "ground_truth": "2"}, "extra_info": {"index": 7, "split": "train"}},
        (asked("user: What is 1 + 1?"), {
            "data_source": "sums", "ability": "math", "reward_model": {"style": "rule", "ground_truth": "2"},
            "extra_info": {"index": 7, "split": "train"},
        }), cells={"column_types": {"reward_model": "json", "extra_info": "json"}},
    ),
    "open-r1 problems": Shape(
        "prompts", {"problem": "What is 1 + 1?", "solution": "$2$"},
        (asked("system: Think.\nThen answer.", "user: What is 1 + 1?"), {"solution": "$2$"}),
        options={"prompt_column": "problem", "as_messages": True, "system_prompt": "Think.\nThen answer."},
    ),
    "open-r1 problems, renamed": Shape(
        "prompts", {"problem": "1 + 1 =", "solution": "2"}, ("1 + 1 =", {"solution": "2"}),
        options={"columns": {"prompt": "problem"}}, is_plain=True,
    ),
    "gsm8k prompts": Shape(
        "prompts", {"question": "1 + 1 =", "answer": "Add.\n#### 2"}, ("1 + 1 =", {"answer": "Add.\n#### 2"}),
        options={"prompt_column": "question"}, is_plain=True,
    ),
    "sharegpt prompts": Shape(
        "prompts", {"conversations": [by("human", "What is 1 + 1?"), by("gpt", "It is 2.")], "source": "web"},
        (asked("user: What is 1 + 1?"), {"source": "web", "conversations": [
            said("user", "What is 1 + 1?"), said("assistant", "It is 2."),
        ]}),
    ),
    "alpaca prompts": Shape(
        "prompts", {"instruction": "Add.", "input": "1 and 1", "output": "It is 2."},
        (asked("user: Add.\n\n1 and 1"), {"instruction": "Add.", "input": "1 and 1", "output": "It is 2."}),
    ),
    # Preferences
    "ultrafeedback": Shape(
        "preferences",
        {"prompt": "What is 1 + 1?", "prompt_id": "ab", "chosen": [
            said("user", "What is 1 + 1?"), said("assistant", "It is 2."),
        ], "rejected": [said("user", "What is 1 + 1?"), said("assistant", "3")], "messages": [
            said("user", "What is 1 + 1?"), said("assistant", "It is 2."),
        ], "score_chosen": 8.5, "score_rejected": 3.0},
        (asked("user: What is 1 + 1?"), f"It is 2.{END}", f"3{END}"),
        unread=("prompt_id", "messages", "score_chosen", "score_rejected"),
    ),
    "ultrafeedback in texts": Shape(
        "preferences", {"source": "sums", "prompt": "1 + 1 =", "chosen": " 2", "rejected": " 3", "chosen-rating": 5.0},
        ("1 + 1 =", f" 2{EOS}", f" 3{EOS}"), unread=("source", "chosen-rating"), is_plain=True,
    ),
    "trl explicit": Shape(
        "preferences",
        {"prompt": [said("user", "What is 1 + 1?")], "chosen": [said("assistant", "It is 2.")],
         "rejected": [said("assistant", "3")]}, (asked("user: What is 1 + 1?"), f"It is 2.{END}", f"3{END}"),
    ),
    "trl implicit": Shape(
        "preferences",
        {"chosen": [said("user", "What is 1 + 1?"), said("assistant", "It is 2.")],
         "rejected": [said("user", "What is 1 + 1?"), said("assistant", "3")]},
        (asked("user: What is 1 + 1?"), f"It is 2.{END}", f"3{END}"),
    ),
    "hh-rlhf": Shape(
        "preferences",
        {"chosen": "\n\nHuman: What is 1 + 1?\n\nAssistant: It is 2.",
         "rejected": "\n\nHuman: What is 1 + 1?\n\nAssistant: Who knows?"},
        ("\n\nHuman: What is 1 + 1?\n\nAssistant:", f" It is 2.{EOS}", f" Who knows?{EOS}"), is_plain=True,
    ),
    "orca pairs": Shape(
        "preferences", {"system": "Be kind.", "question": "What is 1 + 1?", "chosen": "It is 2.", "rejected": "3"},
        (asked("system: Be kind.", "user: What is 1 + 1?"), f"It is 2.{END}", f"3{END}"),
        options={"columns": {"prompt": "question"}, "as_messages": True},
    ),
    "argilla": Shape(
        "preferences",
        {"instruction": "1 + 1 =", "chosen_response": " 2", "rejected_response": " 3", "chosen_avg_rating": 5.0},
        ("1 + 1 =", f" 2{EOS}", f" 3{EOS}"),
        options={"columns": {"prompt": "instruction", "chosen": "chosen_response", "rejected": "rejected_response"}},
        unread=("chosen_avg_rating",), is_plain=True,
    ),
    "sharegpt pairs": Shape(
        "preferences",
        {"conversations": [by("human", "What is 1 + 1?")], "chosen": by("gpt", "It is 2."), "rejected": by("gpt", "3")},
        (asked("user: What is 1 + 1?"), f"It is 2.{END}", f"3{END}"),
    ),
    "alpaca pairs": Shape(
        "preferences", {"instruction": "What is 1 + 1?", "input": "", "chosen": "It is 2.", "rejected": "3"},
        (asked("user: What is 1 + 1?"), f"It is 2.{END}", f"3{END}"),
    ),
    "openai pairs": Shape(
        "preferences",
        {"input": {"messages": [said("user", "What is 1 + 1?")], "parallel_tool_calls": True},
         "preferred_output": [said("assistant", "It is 2.")], "non_preferred_output": [said("assistant", "3")]},
        (asked("user: What is 1 + 1?"), f"It is 2.{END}", f"3{END}"), unread=("parallel_tool_calls",),
    ),
    "messages and two answers": Shape(
        "preferences",
        {"messages": [said("user", "What is 1 + 1?")], "chosen": said("assistant", "It is 2."),
         "rejected": said("assistant", "3")}, (asked("user: What is 1 + 1?"), f"It is 2.{END}", f"3{END}"),
    ),
    "distilabel": Shape(
        "preferences",
        {"system": "Be kind.", "input": "What is 1 + 1?", "chosen": "It is 2.", "rejected": "3", "order": ["a", "b"]},
        (asked("system: Be kind.", "user: What is 1 + 1?"), f"It is 2.{END}", f"3{END}"),
        options={"columns": {"prompt": "input"}, "as_messages": True}, unread=("order",),
    ),
    "skywork": Shape(
        "preferences",
        {"chosen": [said("user", "What is 1 + 1?"), said("assistant", "It is 2.")],
         "rejected": [said("user", "What is 1 + 1?"), said("assistant", "3")], "source": "web"},
        (asked("user: What is 1 + 1?"), f"It is 2.{END}", f"3{END}"), unread=("source",),
    ),
    "hh-rlhf with answers that begin alike": Shape(
        "preferences",
        {"chosen": "\n\nHuman: What is 1 + 1?\n\nAssistant: It is 2.",
         "rejected": "\n\nHuman: What is 1 + 1?\n\nAssistant: It is 3."},
        ("\n\nHuman: What is 1 + 1?\n\nAssistant:", f" It is 2.{EOS}", f" It is 3.{EOS}"), is_plain=True,
    ),
    # Verdicts
    "kto of llama factory": Shape(
        "unpaired", {"messages": [said("user", "What is 1 + 1?"), said("assistant", "It is 2.")], "kto_tag": True},
        (asked("user: What is 1 + 1?"), f"It is 2.{END}", True), options={"columns": {"label": "kto_tag"}},
    ),
    "kto of sharegpt": Shape(
        "unpaired", {"conversations": [by("human", "What is 1 + 1?"), by("gpt", "3")], "label": False},
        (asked("user: What is 1 + 1?"), f"3{END}", False),
    ),
    "kto": Shape(
        "unpaired",
        {"prompt": [said("user", "What is 1 + 1?")], "completion": [said("assistant", "It is 2.")], "label": True},
        (asked("user: What is 1 + 1?"), f"It is 2.{END}", True),
    ),
    "kto in texts": Shape(
        "unpaired", {"prompt": "1 + 1 =", "completion": " 3", "label": False}, ("1 + 1 =", f" 3{EOS}", False),
        is_plain=True,
    ),
    "prm800k": Shape(
        "stepwise", {"prompt": "1 + 1 + 1 =", "completions": ["1 + 1 is 2.", "2 + 1 is 4."], "labels": [True, False]},
        ("1 + 1 + 1 =1 + 1 is 2.\n2 + 1 is 4.\n", [("1 + 1 is 2.", 1), ("2 + 1 is 4.", 0)]), is_plain=True,
        cells=STEPS_OF_JSON,
    ),
    "math shepherd": Shape(
        "stepwise", {"prompt": "1 + 1 =", "completions": ["Step 1: It is 2."], "labels": [1], "task": "GSM8K"},
        ("1 + 1 =Step 1: It is 2.\n", [("Step 1: It is 2.", 1)]), unread=("task",), is_plain=True,
        cells=STEPS_OF_JSON,
    ),
}  # fmt: skip

# What is refused, and with what name


@attrs.frozen
class Refused:
    """A row that is refused, and what the error states.

    Attributes:
        make: the pipeline.
        row: the row.
        message: what the error states, as a regular expression.
        options: options of `data`.
    """

    make: str
    row: Mapping[str, Any]
    message: str
    options: Mapping[str, Any] = attrs.field(factory=dict)


REFUSED: dict[str, Refused] = {
    "llava": Refused(
        "samples", {"id": "1", "image": "a.jpg", "conversations": [by("human", "<image>\nWhat?"), by("gpt", "A cat.")]},
        "has the column 'image' .*take a vision-language model",
    ),
    "llava with images": Refused(
        "samples", {"images": ["1.jpg"], "messages": TALK}, "has the column 'images' .*take a vision-language model"
    ),
    "openai image": Refused(
        "samples", {"messages": [
            said("user", [{"type": "image_url", "image_url": {"url": "a.png"}}]), said("assistant", "A cat."),
        ]}, r"a message \('user'\) shows an image",
    ),
    "verl with images": Refused(
        "prompts", {"prompt": TALK[:1], "images": [{"path": "a.png"}]}, r"prompts\[0\]: has the column 'images'"
    ),
    "openai audio": Refused(
        "samples", {"messages": [TALK[0], {**TALK[1], "audio": {"id": "a"}}]}, r"a message \('assistant'\) has 'audio'"
    ),
    "anthropic calls of tools": Refused(
        "samples", {"messages": [
            TALK[0], said("assistant", [{"type": "tool_use", "id": "a", "name": "look", "input": {"city": "Paris"}}]),
        ]}, r"message 1 \(assistant\): has a part of the type 'tool_use'",
    ),
    "gemini": Refused(
        "samples", {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}, r"unknown set of keys \('contents'\)"
    ),
    "cohere": Refused(
        "samples", {"messages": [said("System", "Be kind."), said("User", "Hi"), said("Chatbot", "Hello.")]},
        "message 0: 'role' is 'System'; did you mean 'system'",
    ),
    "langchain": Refused(
        "samples", {"messages": [said("human", "Hi"), said("ai", "Hello.")]}, "'role' is 'human'; did you mean 'user'"
    ),
    "glaive without columns": Refused(
        "samples", {"system": "SYSTEM: Be kind.", "chat": "USER: Hi"}, r"unknown set of keys \('system', 'chat'\)"
    ),
    "gsm8k without columns": Refused(
        "samples", {"question": "1 + 1?", "answer": "2"}, "data.columns = {prompt: question, output: answer}"
    ),
    "gsm8k prompts without columns": Refused(
        "prompts", {"question": "1 + 1?", "answer": "2"}, "has no key 'prompt' .*'question'.*data.prompt_column"
    ),
    "capybara": Refused(
        "samples", {"conversation": [{"input": "Hi", "output": "Hello."}]},
        r"\['messages'\]\[0\]: is {'input'.*; a message is {role, content}", {"columns": {"messages": "conversation"}},
    ),
    "xlam": Refused(
        "samples", {"id": 0, "query": "Rain?", "answers": "[]", "tools": "[]"}, r"unknown set of keys \('id', 'query'"
    ),
    "tokens": Refused(
        "samples", {"input_ids": [1, 2], "attention_mask": [1, 1], "labels": [1, 2]}, r"set of keys \('input_ids'"
    ),
    "an unknown speaker": Refused(
        "samples", {"conversations": [by("human", "Hi"), by("narrator", "Hm."), by("gpt", "Hello.")]},
        r"samples\[0\]\['conversations'\]\[1\]: 'from' is 'narrator'",
    ),
    "no messages": Refused("samples", {"messages": []}, r"samples\[0\]\['messages'\]: is empty"),
    "an empty answer": Refused(
        "samples", {"messages": [TALK[0], said("assistant", "")]}, r"message 1 \(assistant\): 'content' is ''"
    ),
    "an answer in preferences": Refused(
        "samples", {"prompt": "Hi", "chosen": "Hello.", "rejected": "No."}, "has the key 'chosen', as preferences have"
    ),
    "thoughts that the template drops": Refused(
        "samples", {"messages": [TALK[0], {**TALK[1], "reasoning_content": "Hm."}]},
        "the chat template drops 'Hm.' of its 'reasoning_content'",
    ),
    "parts that the template writes as python does": Refused(
        "samples", {"messages": [said("user", [{"type": "text", "text": "Hi"}] * 2), TALK[1]]},
        "'content' as Python does",
    ),
    "ultrafeedback with completions": Refused(
        "preferences", {"instruction": "Hi", "models": ["a"], "completions": [{"model": "a", "response": "Hello."}]},
        "has no key 'chosen' .*data.columns renames a column: {chosen: its name}",
    ),
    "pku": Refused(
        "preferences", {"prompt": "Hi", "response_0": "Hello.", "response_1": "No.", "better_response_id": 0},
        "has no key 'chosen' .*'response_0'",
    ),
    "shp": Refused(
        "preferences", {"history": "Hi", "human_ref_A": "Hello.", "human_ref_B": "No.", "labels": 1},
        "has no key 'chosen' .*'human_ref_A'",
    ),
    "nectar": Refused(
        "preferences", {"prompt": "Hi", "answers": [{"answer": "Hello.", "rank": 1}]}, "has no key 'chosen' .*'answers'"
    ),
    "a pair without its answer": Refused(
        "preferences", {"prompt": TALK[:1], "chosen": [TALK[1]], "rejected": None}, r"\['rejected'\]: is empty"
    ),
    "kto with a word": Refused(
        "unpaired", {"prompt": "Hi", "completion": "Hello.", "label": "chosen"}, "'label' is 'chosen'; it must be true"
    ),
    "math shepherd with marks": Refused(
        "stepwise", {"input": "1 + 1 = 2 step", "label": "1 + 1 = 2 +", "task": "GSM8K"}, "'prompt' is None .*'input'"
    ),
    "steps as JSON": Refused(
        "stepwise", {"prompt": "1 + 1 =", "completions": '["2"]', "labels": "[1]"}, "set data.column_types"
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", ["rows", "jsonl"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_published_shape_that_cannot_be_read_is_refused_by_name(
    name: str, way: str, chatml: Any, tmp_path: Path
) -> None:
    each = REFUSED[name]
    with pytest.raises(DataError, match=each.message):
        build(Shape(each.make, each.row, ()), WAYS[way](each.row, tmp_path), chatml, each.options)


def test_the_museum_has_its_shapes() -> None:
    assert len(SHAPES) + len(REFUSED) >= 80


# Ways in which rows are given


def _write(row: Mapping[str, Any], path: Path) -> str:
    rows = [dict(row)] * 2
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(each, ensure_ascii=False) + "\n" for each in rows), encoding="utf-8")
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif path.suffix == ".parquet":
        datasets.Dataset.from_list(rows).to_parquet(str(path))
    elif path.suffix == "":
        datasets.Dataset.from_list(rows).save_to_disk(str(path))
    else:
        cells = [
            {key: each if isinstance(each, str | None) else json.dumps(each) for key, each in row.items()}
            for row in rows
        ]
        pd.DataFrame(cells).to_csv(path, index=False, sep="," if path.suffix == ".csv" else "\t")
    return str(path)


WAYS = {
    "rows": lambda row, _: [dict(row)] * 2,
    "jsonl": lambda row, folder: _write(row, folder / "rows.jsonl"),
    "json": lambda row, folder: _write(row, folder / "rows.json"),
    "parquet": lambda row, folder: _write(row, folder / "rows.parquet"),
    "csv": lambda row, folder: _write(row, folder / "rows.csv"),
    "tsv": lambda row, folder: _write(row, folder / "rows.tsv"),
    "frame": lambda row, _: pd.DataFrame([dict(row)] * 2),
    "frame of parquet": lambda row, folder: pd.read_parquet(_write(row, folder / "rows.parquet")),
    "data set": lambda row, _: datasets.Dataset.from_list([dict(row)] * 2),
    "load_from_disk": lambda row, folder: _write(row, folder / "saved"),
}  # fmt: skip


@pytest.fixture(scope="module")
def chatml(byte_tokenizer):
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES["chatml"])
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "{{ m.content }}",
        "{{ m.content or '' }}{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} "
        "{{ c.function.arguments | tojson }}</call>{% endfor %}",
    )
    return tokenizer


@pytest.fixture(scope="module")
def plain(byte_tokenizer):
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES["chatml"])
    tokenizer.chat_template = None
    return tokenizer


def build(shape: Shape, source: Any, tokenizer: Any, options: Mapping[str, Any]) -> list[Any]:
    what = "prompts" if shape.make == "prompts" else "samples"
    return list(MAKES[shape.make](source, tokenizer, DataConfig(**options), max_length=0, what=what))


def described(made: Any, shape: Shape, tokenizer: Any) -> tuple[Any, ...]:
    """Return what a pipeline made of a row in the form of `Shape.made`."""

    def parts(sample: Any) -> tuple[str, list[str]]:
        tokens = [token for token in sample.tokens if token != tokenizer.bos_token_id]
        return tokenizer.decode(tokens), runs_of(sample.tokens, sample.action_mask, tokenizer)

    if shape.make == "samples":
        return parts(made)
    if shape.make == "prompts":
        return made.text, dict(made.columns)
    if shape.make == "unpaired":
        whole, (answer,) = parts(made.sample)
        return before(whole, answer), answer, made.label
    if shape.make == "stepwise":
        whole, (answer,) = parts(made.sample)
        ends = [k for k, label in enumerate(made.labels) if label != UNLABELLED]
        return whole, list(zip(answer.rstrip("\n").split("\n"), (made.labels[k] for k in ends), strict=True))
    (whole, (chosen,)), (other, (rejected,)) = parts(made.chosen), parts(made.rejected)
    assert before(whole, chosen) == before(other, rejected)
    return before(whole, chosen), chosen, rejected


def before(whole: str, answer: str) -> str:
    """Return the prompt of an answer, after which a template may break the line."""
    assert whole.removesuffix("\n").endswith(answer)
    return whole.removesuffix("\n").removesuffix(answer)


def named_in(text: str) -> set[str]:
    """Return the keys that warnings named as not read."""
    found = re.findall(r"keys of rows are not read: (.*?); ", text)
    return {key for line in found for key in re.findall(r"'([^']+)' \(", line)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SHAPES)
def test_a_published_shape_has_its_texts_from_every_kind_of_file(
    name: str, way: str, chatml: Any, plain: Any, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    shape = SHAPES[name]
    tokenizer = plain if shape.is_plain else chatml
    options = {**shape.options, **(shape.cells if way in ("csv", "tsv") else {})}
    made = build(shape, WAYS[way](shape.row, tmp_path), tokenizer, options)
    assert [described(each, shape, tokenizer) for each in made] == [shape.made] * 2
    assert named_in(capsys.readouterr().err) == set(shape.unread)


REWARDED: dict[str, tuple[Mapping[str, Any], Mapping[str, Any], list[float]]] = {
    "one for the answer": ({"prompt": "1 + 1 =", "output": " 2", "reward": 0.5}, {}, [0, 0, 0.5]),
    "under another name": ({"prompt": "1 + 1 =", "output": " 2", "score": 3}, {"reward": "score"}, [0, 0, 3]),
    "one for each token": ({"prompt": "1 + 1 =", "output": " 2", "reward": [0.25, 0.5, -1.0]}, {}, [0.25, 0.5, -1]),
    "one for each turn": (
        {"conversations": ["1 + 1 =", " 2", " and", " 4"], "reward": [0.5, -1.0]}, {}, [0, 0, 0.5, 0, 0, -1],
    ),
}  # fmt: skip
"""Rows with rewards, `data.columns`, and the rewards of the answers' bytes and EOS."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", REWARDED)
def test_rewards_beside_demonstrations_have_their_tokens(
    name: str, way: str, plain: Any, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    row, columns, rewards = REWARDED[name]
    source, data = WAYS[way](row, tmp_path), DataConfig(columns=columns)
    samples = SAMPLES(source, plain, data, max_length=0)
    made = SAMPLES.read_rewards(source, samples, columns, what="rewards")
    marks = [zip(each.tokens, sample.action_mask, strict=True) for each, sample in zip(made, samples, strict=True)]
    assert [[reward for reward, is_chosen in each if is_chosen] for each in marks] == [rewards] * 2
    assert not named_in(capsys.readouterr().err)
