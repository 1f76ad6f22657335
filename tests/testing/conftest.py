"""Deliberately wrong components, reached in this process and, as an installed dist, in every child."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "wrong")]  # children of the laws get sys.path too

from sites import Site  # noqa: E402  importable from here on

from rlcore.plugins import registry  # noqa: E402

os.environ.setdefault("OMP_NUM_THREADS", "1")


@contextlib.contextmanager
def nothing_remembered() -> Iterator[None]:
    """Have discovery look anew in the block, and remember afterwards what it did before."""
    kept = dict(registry._memo)
    registry._memo.clear()
    try:
        yield
    finally:
        registry._memo.clear()
        registry._memo.update(kept)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder of the test's own: a wrong component may write where it should not."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Return an empty folder of installed dists, on sys.path; discovery remembers nothing before and after."""
    made = Site(tmp_path / "site")
    monkeypatch.syspath_prepend(str(made.folder))
    with nothing_remembered():
        yield made
    made.forget()


@pytest.fixture(scope="module")
def wrong_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Install the dist `acme-wrong`, which brings every component of wrong/registered.py."""
    made = Site(tmp_path_factory.mktemp("wrong"))
    made.install("acme-wrong", entry="wrong_plugin")
    sys.path.insert(0, str(made.folder))
    with nothing_remembered():
        yield made
    sys.path.remove(str(made.folder))
