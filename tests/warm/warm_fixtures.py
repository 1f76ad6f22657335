"""What the conftest.py of tests/ and that of plugins/ share: fixtures that fork processes, and hooks of pytest."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator

import depths
import pytest
from warm_python import WarmPython
from warm_ranks import forking

from rlcore_testing import Case
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


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marks that are set below, for the projects that plugins generate: these name none and are strict."""
    for mark in ("slow", "nightly"):
        config.addinivalue_line("markers", mark)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by the tables of `depths`, before they are selected by their marks."""
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        depths.mark(item)
        given = item.callspec.params if hasattr(item, "callspec") else {}
        law = given.get("law")
        name = _name(law) or _name(given.get("case"))
        component = law.subject.component if isinstance(law, Case) else None
        of = "" if component is None else component.name
        if of and name in depths.NIGHTLY_LAWS and of not in depths.NIGHTLY_LAWS[name]:
            item.add_marker(pytest.mark.nightly)
        elif name in depths.SLOW_LAWS or (
            name in depths.SLOW_LAWS_OF_FURTHER_TRAINERS
            and (component is None or component.kind == "trainers")  # other kinds have laws of the same names
            and of not in depths.TRAINERS_OF_EVERY_RUN
        ):
            item.add_marker(pytest.mark.slow)


def _name(given: object) -> str | None:
    """Return the name of the law that a parameter of a test is, or is a case of."""
    law = getattr(given, "law", given)
    return law if isinstance(law, str) else getattr(law, "name", None)


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
