"""Fuzz tests of checkpoints: state of any shape is restored exactly, and any damage is found and named."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from fuzzing import NUMBERS, TEXT, result_or_message
from hypothesis import assume, given
from hypothesis import strategies as st

from rlcore.checkpoints.checkpoint import Checkpoints
from rlcore.checkpoints.state import load_state, save_state
from rlcore.errors import CheckpointError

ENCODABLE = TEXT.filter(lambda text: text.isascii())
LEAVES = st.none() | st.booleans() | NUMBERS | ENCODABLE
STATES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ENCODABLE | st.integers(0, 9), inner, max_size=3),
    max_leaves=8,
)


def _fill(folder: Path) -> None:
    save_state(folder / "trainer.safetensors", {"a": [1, 2.5, None], "b": "text"})
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text('{"layers": 2}')


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Checkpoints(tmp_path_factory.mktemp("run") / "checkpoints").write(3, _fill, manifest={"trainer": "x"})


@given(STATES)
def test_any_state_is_restored_exactly(here: Path, state: Any) -> None:
    saved = result_or_message(lambda: save_state(here / "s", state), CheckpointError)
    assume(saved is None)
    assert repr(load_state(here / "s")) == repr(state)


@given(st.data())
def test_any_changed_byte_is_found(here: Path, whole: Path, data: st.DataObject) -> None:
    copy = here / whole.name
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(whole, copy)
    files = sorted(path for path in copy.rglob("*") if path.is_file())
    path = data.draw(st.sampled_from(files))
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    opened = result_or_message(lambda: Checkpoints.open(copy), CheckpointError)
    assert isinstance(opened, CheckpointError)
    assert str(copy) in str(opened)


@given(st.data())
def test_any_truncated_file_is_found(here: Path, whole: Path, data: st.DataObject) -> None:
    copy = here / whole.name
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(whole, copy)
    path = data.draw(st.sampled_from(sorted(path for path in copy.rglob("*") if path.is_file())))
    content = path.read_bytes()
    text_end = len(content.rstrip(b"\n"))  # the line break after the manifest says nothing
    path.write_bytes(content[: data.draw(st.integers(0, text_end - 1))])
    assert isinstance(result_or_message(lambda: Checkpoints.open(copy), CheckpointError), CheckpointError)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_state_give_a_clear_error(here: Path, content: bytes) -> None:
    (here / "s").write_bytes(content)
    assert isinstance(result_or_message(lambda: load_state(here / "s"), CheckpointError), CheckpointError)
