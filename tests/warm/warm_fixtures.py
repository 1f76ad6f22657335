"""What the conftest.py of tests/ and that of plugins/ share: fixtures that fork processes, and hooks of pytest."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator

import pytest
from warm_python import WarmPython
from warm_ranks import forking

from rlcore_testing import Case
from rlcore_testing.rig import isolate

SLOW_LAWS = {
    "a_bad_number_on_one_rank_stops_the_run_or_is_counted", "a_bad_number_stops_the_run_or_is_counted",
    "a_spawned_worker_has_the_same_components", "an_accepted_change_has_its_effect", "another_process_same_numbers",
    "divided_weights_equal_whole_ones", "frequencies_match_the_policy", "host_and_device_do_not_mix", "it_learns",
    "registering_again_gives_the_same",
    "resume_is_exact", "two_processes_equal_one", "two_processes_make_the_steps_of_one",
}  # fmt: skip
"""Laws of the kit that start processes, or train several times: `make test` leaves them out."""
NIGHTLY_LAWS = {
    "a_bad_number_on_one_rank_stops_the_run_or_is_counted": ("sft", "ppo", "grpo"),
    "an_accepted_change_has_its_effect": ("sft",),
    "divided_weights_equal_whole_ones": ("sft", "ppo"),
    "host_and_device_do_not_mix": ("grpo",),
    "two_processes_make_the_steps_of_one": ("none", "fsdp", "zero3"),
}
"""Law → the components for which continuous integration checks it; for others, and for models of T5, it runs at night.

Other laws cover them by day: a bad number in one process, equal results of one process and of two, and for accepted
changes `tests/laws/test_changed_options.py`.
"""


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
    """Mark the cases of `SLOW_LAWS` and `NIGHTLY_LAWS`, before tests are selected by their marks."""
    for item in items:
        given = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        law = given.get("law")
        if isinstance(law, Case) and law.law.name in NIGHTLY_LAWS:
            by_day = law.subject.it.name in NIGHTLY_LAWS[law.law.name]
            item.add_marker(pytest.mark.slow if by_day else pytest.mark.nightly)
        elif _name(law) in SLOW_LAWS or _name(given.get("case")) in SLOW_LAWS:
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
