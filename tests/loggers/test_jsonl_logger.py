"""Tests of the JSON-lines logger: metrics and completions are written completely, one object per line."""

from __future__ import annotations

import json
import math
import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rlcore.loggers.jsonl import JsonlLogger


def read(path: Path) -> list[dict[str, Any]]:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text(encoding="utf-8").splitlines()]


def test_all_metrics_are_on_disk_after_each_call_unrounded(tmp_path: Path) -> None:
    logger = JsonlLogger(None, SimpleNamespace(dir=tmp_path))
    metrics = {
        "loss/total": 0.1 + 0.2,
        "loss/tiny": 5e-324,
        "count": 2**53 + 1,
        "third": np.float32(1 / 3),
        "t": torch.tensor(2.5),
    }
    logger.metrics(1, metrics)
    assert read(tmp_path / "metrics.jsonl") == [
        {"step": 1, "loss/total": 0.30000000000000004, "loss/tiny": 5e-324, "count": 9007199254740993,
         "third": 0.3333333432674408, "t": 2.5}
    ]  # fmt: skip
    logger.metrics(2, {"loss/total": 1.0})
    assert [record["step"] for record in read(tmp_path / "metrics.jsonl")] == [1, 2]
    logger.close(None)


def test_a_metric_that_is_not_finite_is_written_as_null(tmp_path: Path) -> None:
    JsonlLogger(None, SimpleNamespace(dir=tmp_path)).metrics(1, {"a": math.nan, "b": math.inf, "c": -math.inf})
    assert read(tmp_path / "metrics.jsonl") == [{"step": 1, "a": None, "b": None, "c": None}]


def test_completions_are_one_line_a_row_whatever_they_hold(tmp_path: Path) -> None:
    logger = JsonlLogger(None, SimpleNamespace(dir=tmp_path))
    row = {"prompt": "naïve\n\u2028\x1b", "output": "\udc80", "reward": 1, "step": 99, "meta": {"ids": (1, 2)}}
    logger.completions(4, [row, {"prompt": "p", "output": "o"}])
    lines = (tmp_path / "completions.jsonl").read_bytes().decode().split("\n")
    assert lines.pop() == ""
    assert [json.loads(line) for line in lines] == [
        {"step": 4, "prompt": "naïve\n\u2028\x1b", "output": "\\udc80", "reward": 1, "meta": {"ids": [1, 2]}},
        {"step": 4, "prompt": "p", "output": "o"},
    ]
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_second_jsonl_logger_appends_to_the_file(tmp_path: Path) -> None:
    for step in (1, 2):
        logger = JsonlLogger(None, SimpleNamespace(dir=tmp_path))
        logger.metrics(step, {})
        logger.close(None)
    assert read(tmp_path / "metrics.jsonl") == [{"step": 1}, {"step": 2}]


def test_lines_that_did_not_fit_are_written_when_there_is_room_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = JsonlLogger(None, SimpleNamespace(dir=tmp_path))
    logger.metrics(1, {"a": 1.0})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, hard))
    try:
        for step in (2, 3, 4):
            logger.metrics(step, {"a": 1.0})
        written = read(tmp_path / "metrics.jsonl")
        with pytest.raises(OSError, match="too large"):
            logger.close(None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert written == [{"step": 1, "a": 1.0}]
    logger.metrics(5, {"a": 1.0})
    assert [record["step"] for record in read(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5]
    assert capsys.readouterr().err.count("lines could not be written") == 1
