"""What the conftest.py of tests/ and that of plugins/ share: fixtures that fork processes, and one hook of pytest."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator

import pytest
from warm_python import WarmPython
from warm_ranks import forking

from rlcore_testing.rig import isolate


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while test modules are imported, nor afterwards what they and their libraries hold.

    Each search of the whole heap of torch, transformers and the tests takes .3 s of CPU time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPython]:
    """Factory of Python processes that have torch and transformers imported already."""
    warm = WarmPython(tmp_path_factory.mktemp("warm"))
    yield warm
    warm.close()


@pytest.fixture(scope="session", autouse=True)
def _laws_that_fork(warm_python: WarmPython) -> Iterator[None]:
    """Fork the processes that laws of the kit start, which would otherwise each import torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isolate, "_run", forking(warm_python, isolate._run))
        yield
