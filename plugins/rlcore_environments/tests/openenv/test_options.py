"""What can be known without a server."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from openenv_options import make

import rlcore_environments.openenv
from rlcore.errors import ConfigError

URL = "http://127.0.0.1:1"


def test_rows_of_the_two_splits_share_no_seed() -> None:
    factory = make(url=URL, train_rows=3, eval_rows=2, seed=5)
    assert factory.rows("eval") == [{"seed": 5}, {"seed": 6}]
    assert factory.rows("train") == [{"seed": 7}, {"seed": 8}, {"seed": 9}]
    assert make(url=URL, eval_rows=0).rows("eval") is None


def test_rows_of_tasks_name_the_split_and_the_index() -> None:
    factory = make(url=URL, train_rows=2, eval_rows=1, train_split="easy", eval_split="hard")
    assert factory.rows("eval") == [{"seed": 0, "reset": {"split": "hard", "index": 0}}]
    assert [row["reset"] for row in factory.rows("train") or ()] == [
        {"split": "easy", "index": 0}, {"split": "easy", "index": 1},
    ]  # fmt: skip
    assert make(url=URL, train_split="easy").rows("eval") is None


def test_without_the_library_the_error_names_a_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openenv", None)
    monkeypatch.setitem(sys.modules, "openenv.core", None)
    with pytest.raises(
        ImportError, match=r"'openenv' is not installed .* a Python that has it in data\.episodes\.python"
    ):
        make(url=URL).make()


def test_a_header_whose_variable_cannot_be_used_ends_the_run_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {"url": URL, "header_env": {"Authorization": "DOOR_HEADER"}}
    monkeypatch.delenv("DOOR_HEADER", raising=False)
    with pytest.raises(
        ConfigError, match=r"data\.environment\.header_env: .* 'DOOR_HEADER' is not set; it has the header A"
    ):
        make(**given)
    monkeypatch.setenv("DOOR_HEADER", "Bearer open\nsesame")
    with pytest.raises(
        ConfigError, match=r"the value of 'DOOR_HEADER' has characters that no header can have"
    ) as wrong:
        make(**given)
    assert "sesame" not in str(wrong.value)
    monkeypatch.setenv("DOOR_HEADER", "Bearer open-sesame\n")
    assert "sesame" not in repr(pickle.dumps(make(**given)))


def test_episodes_import_nothing_of_rlcore() -> None:
    folder = Path(rlcore_environments.openenv.__file__).parent.parent
    program = (
        f"import sys; sys.path.insert(0, {str(folder)!r}); import rlcore_environments.openenv.episodes; "
        "print([name for name in sys.modules if name.split('.')[0] in ('rlcore', 'torch', 'attrs')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "url: must be given"),
        ({"url": "localhost:8000"}, "url = 'localhost:8000': must begin with http://"),
        ({"url": URL, "train_split": "a", "eval_split": "a"}, "eval_split = 'a': must differ from train_split"),
        ({"url": URL, "eval_split": "a"}, "eval_split = 'a': needs train_split"),
        ({"url": URL, "message_timeout_s": 0}, "message_timeout_s = 0.* must be greater than 0"),
        ({"url": URL, "action": "text"}, "data.environment.action: no such option"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**options)
