"""Reward functions in runs of the trainer `distill`: the columns of demonstrations, and the check before the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from distill_making import make, teacher_folder

import rlcore
from rlcore.errors import RewardError
from rlcore_testing.small import make_llama, make_tokenizer

ROWS = [{"prompt": letter, "output": "x", "answer": ord(letter)} for letter in "abcdefgh"]
CHAT = [
    {"messages": [{"role": "user", "content": x}, {"role": "assistant", "content": "x"}], "answer": ord(x)}
    for x in "abcd"
]
TEMPLATE = "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}</s>{% endif %}{% endfor %}"
SEEN: list[dict[str, Any]] = []


def note(prompts: list[str], outputs: list[str], answer: list[int], messages: list[Any], **_: Any) -> list[float]:
    SEEN.extend({"prompt": p, "answer": a, "messages": m} for p, a, m in zip(prompts, answer, messages, strict=True))
    return [float(len(output)) for output in outputs]


def columns_of(folder: Path, samples: Any, **more: Any) -> list[dict[str, Any]]:
    SEEN.clear()
    inputs = {"samples": samples, "reward_fn": note, **more.pop("inputs", {})}
    trainer = make(folder, options={"on_policy": 1.0}, inputs=inputs, **more)
    SEEN.clear()  # of the calls before the run
    metrics = [trainer.rows.next()[1] for _ in range(2)]
    assert all("reward/mean" in each for each in metrics)
    return list(SEEN)


def test_reward_functions_receive_the_columns_of_demonstrations(tmp_path: Path) -> None:
    found = columns_of(tmp_path, ROWS)
    assert len(found) == 8
    assert all(each["answer"] == ord(each["prompt"]) for each in found)


def test_columns_come_from_files_and_mixtures_too_with_their_sources(tmp_path: Path) -> None:
    for name, rows in (("one", ROWS[:4]), ("two", ROWS[4:])):
        renamed = [{"question": row["prompt"], "output": row["output"], "answer": row["answer"]} for row in rows]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in renamed))
    given = [{"path": str(tmp_path / f"{name}.jsonl"), "weight": 1} for name in ("one", "two")]
    data = {"columns": {"prompt": "question"}}
    found = columns_of(tmp_path / "run", given, data=data)
    assert len(found) == 8
    assert all(each["answer"] == ord(each["prompt"]) for each in found)
    trainer = make(tmp_path / "by source", inputs={"samples": given, "reward_fn": note}, data=data)
    assert any(name.startswith("reward/mean/") for name in trainer.rows.next()[1])


@pytest.mark.parametrize("is_mixture", [False, True])
def test_reward_functions_receive_the_columns_of_streamed_rows(tmp_path: Path, is_mixture: bool) -> None:
    names = {"path": str(tmp_path / "rows.jsonl"), "columns": {"answer": "right"}, "name": "sums", "weight": 1}
    rows = [{"prompt": row["prompt"], "output": row["output"], "right": row["answer"]} for row in ROWS]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data: dict[str, Any] = {"streaming": True, "shuffle_buffer": 3}
    if not is_mixture:
        data["columns"] = names["columns"]
    found = columns_of(tmp_path / "run", [names] if is_mixture else names["path"], data=data)
    assert len(found) == 8
    assert all(each["answer"] == ord(each["prompt"]) for each in found)
    if is_mixture:
        trainer = make(tmp_path / "by source", inputs={"samples": [names], "reward_fn": note}, data=data)
        assert "reward/mean/sums" in trainer.rows.next()[1]


def test_the_messages_of_a_conversation_end_with_the_output(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    found = columns_of(tmp_path, CHAT, inputs={"tokenizer": tokenizer})
    assert len(found) == 8
    for each in found:
        assert each["messages"][0] == {"role": "user", "content": chr(each["answer"])}
        assert each["messages"][1]["role"] == "assistant"


def train(folder: Path, **given: Any) -> Any:
    """Begin a run whose model has no weights: what is not refused before it is loaded raises a ModelError."""
    make_llama().config.save_pretrained(folder / "model")
    return rlcore.train(
        str(folder / "model"), tokenizer=make_tokenizer(), trainer={"name": "distill", "teacher": teacher_folder()},
        loggers=[], run={"root": str(folder / "runs"), "steps": 1}, **given,
    )  # fmt: skip


def test_a_function_that_needs_an_absent_column_is_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    def wrong(outputs: list[str], anwser: list[int]) -> list[float]:
        return [float(each) for each in anwser]

    with pytest.raises(
        RewardError, match=r"before the run, with samples, batch of 2\).*'anwser'; did you mean 'answer'"
    ):
        train(tmp_path, samples=ROWS, reward_fn=wrong)


def test_a_function_that_returns_no_numbers_for_demonstrations_is_refused_before_the_model_is_loaded(
    tmp_path: Path,
) -> None:
    with pytest.raises(RewardError, match=r"(?s)before the run, with samples.*the columns are those of the first rows"):
        train(tmp_path, samples=ROWS, reward_fn=lambda outputs, answer: [str(each) for each in answer])


def test_no_warning_says_that_the_functions_are_unused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, inputs={"samples": ROWS, "reward_fn": note})
    assert "a function is not used" not in capsys.readouterr().err


def test_rows_that_are_read_once_have_no_columns_and_a_warning_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def length(outputs: list[str]) -> list[float]:
        return [float(len(output)) for output in outputs]

    trainer = make(tmp_path, inputs={"samples": (row for row in ROWS), "reward_fn": length})
    assert "reward functions receive no columns of samples: they are an iterator" in capsys.readouterr().err
    assert "reward/mean" in trainer.rows.next()[1]
