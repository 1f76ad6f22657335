"""Tests of the store's folders: each store has its own, and closing it removes temporary files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import datasets
import pytest

from rlcore.errors import ConfigError
from rlcore.types import Trajectories
from rlcore_transformers.disk_store.config import DiskStoreConfig
from rlcore_transformers.disk_store.store import DiskStore


def make_store(folder: Path, keep: int = 0) -> DiskStore:
    return DiskStore(DiskStoreConfig(path=str(folder), keep=keep))


def rows(*tokens: list[int]) -> Trajectories:
    return Trajectories.stack(tokens, [[False] + [True] * (len(row) - 1) for row in tokens])


def test_the_newest_taken_rounds_are_kept_where_that_is_asked_for(tmp_path: Path) -> None:
    store = make_store(tmp_path, keep=2)
    for i in range(4):
        store.append(rows([i, 1]))
        store.append(rows([i, 2]))
        store.take()
    del store
    kept = sorted(tmp_path.rglob("*.arrow"))
    assert [path.parent.name for path in kept] == ["000002", "000002", "000003", "000003"]
    assert [datasets.Dataset.from_file(str(path))["tokens"][0] for path in kept] == [[2, 1], [2, 2], [3, 1], [3, 2]]
    make_store(tmp_path)
    assert sorted(tmp_path.rglob("*.arrow")) == kept


def test_a_store_that_is_deleted_removes_its_files(tmp_path: Path) -> None:
    store, other = make_store(tmp_path), make_store(tmp_path)
    assert store.folder != other.folder
    store.append(rows([1, 2]))
    other.append(rows([3, 4]))
    batch = store.take()
    store.append(rows([1, 2]))
    del store
    assert [path.name for path in tmp_path.iterdir()] == [other.folder.name]
    assert batch.tokens.tolist() == [[1, 2]]
    assert other.take().tokens.tolist() == [[3, 4]]


SCRIPT = """
import os, signal, sys, torch
from rlcore.types import Trajectories
from rlcore_transformers.disk_store.config import DiskStoreConfig
from rlcore_transformers.disk_store.store import DiskStore
store = DiskStore(DiskStoreConfig(path=sys.argv[1] or None))
store.append(Trajectories.stack([[1, 2]], [[False, True]]))
print(store.folder, flush=True)
if sys.argv[2] == "fork" and os.fork() == 0:
    sys.exit()
elif sys.argv[2] == "fork":
    os.wait()
    assert store.take().tokens.tolist() == [[1, 2]]
elif sys.argv[2] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def run(path: str, how: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, path, how], env={**os.environ, **environment},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip


@pytest.mark.slow
def test_the_end_of_a_process_removes_its_folder_and_a_child_s_end_does_not(tmp_path: Path) -> None:
    done = run("", "fork", TMPDIR=str(tmp_path), RANK="3")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).name.startswith("rlcore-rollouts-rank3-")
    assert Path(done.stdout.strip()).parent == tmp_path
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_next_store_removes_files_of_killed_processes_and_keeps_those_of_living_ones(
    tmp_path: Path,
) -> None:
    living = make_store(tmp_path)
    killed = run(str(tmp_path), "kill")
    left = Path(killed.stdout.strip())
    assert list(left.glob("*.arrow")), killed.stderr
    store = make_store(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([living.folder, store.folder])


def test_an_unusable_folder_is_refused_when_the_store_is_built(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"store.path = '.*file': no folder can be made there"):
        make_store(tmp_path / "file")
    with pytest.raises(ConfigError, match=r"store.keep = 1: .*store.path"):
        DiskStore(DiskStoreConfig(keep=1))
