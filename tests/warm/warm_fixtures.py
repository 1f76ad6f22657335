"""Fixtures that fork the processes of tests; the conftest.py of tests/ and that of plugins/ import them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from warm_python import WarmPython
from warm_ranks import forking

from rlcore_testing.rig import isolate


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
