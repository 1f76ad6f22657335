"""Fuzz tests of data: rows and files of any shape are tokenised without a change, or refused by a message."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from fuzzing import VALUES, result_or_message
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from rlcore.errors import RLCoreError
from rlcore.settings import DataConfig
from rlcore_testing.small import make_tokenizer
from rlcore_transformers.data.prompts import build_prompts
from rlcore_transformers.data.samples import build_samples
from rlcore_transformers.data.sources import load_source

KEYS = st.sampled_from(["prompt", "output", "completion", "messages", "text", "role", "content", "reward", "score"])
TURNS = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "x"]), "content": VALUES}), max_size=3
)
ROWS = st.lists(VALUES | st.dictionaries(KEYS, VALUES | TURNS, max_size=3) | st.tuples(VALUES, VALUES), max_size=3)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return make_tokenizer()


@pytest.mark.parametrize("build", [build_prompts, build_samples])
@given(rows=ROWS)
def test_any_rows_are_read_or_refused(build: Any, tokenizer: PreTrainedTokenizerBase, rows: list[Any]) -> None:
    before = copy.deepcopy(rows)
    result_or_message(lambda: build(rows, tokenizer, DataConfig(), max_length=16))
    assert repr(rows) == repr(before)


@pytest.mark.parametrize("name", ["x.jsonl", "x.json", "x.csv", "x.txt"])
@given(content=st.binary(max_size=40) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_read_as_rows_or_give_a_clear_error(here: Path, name: str, content: bytes) -> None:
    (here / name).write_bytes(content)
    assert isinstance(result_or_message(lambda: load_source(name)), list | RLCoreError)


@given(st.lists(st.dictionaries(st.text(max_size=5), VALUES, max_size=3), max_size=3))
def test_rows_of_a_file_are_those_written(here: Path, rows: list[Any]) -> None:
    (here / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = result_or_message(lambda: load_source("x.jsonl"))
    assert isinstance(read, RLCoreError) or repr(read) == repr(rows)
