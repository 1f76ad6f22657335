"""Tests of installed observer plugins in separate processes: one that raises is dropped, and the others continue."""

from __future__ import annotations

from pathlib import Path

import pytest
from dists import Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


OBSERVER = """
from rlcore import hookimpl

@hookimpl
def on_step(run, metrics):
    print("{name}", metrics["loss"])
    {then}

@hookimpl
def on_run_end(run, error):
    print("{name} end")
"""
WATCH = """
import structlog, sys
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
from rlcore.plugins.observers import Observers
watch = Observers()
for loss in (1, 2, 3):
    watch.on_step(None, {"loss": loss})
watch.on_run_end(None, None)
Observers().on_step(None, {"loss": 4})
"""


@pytest.mark.parametrize("failure", ["raise ValueError('no')", "raise SystemExit(3)"])
def test_an_observer_that_raises_is_logged_once_and_dropped_for_the_run_only(site: Site, failure: str) -> None:
    site.install("bad", OBSERVER.format(name="bad", then=failure))
    site.install("good", OBSERVER.format(name="good", then=""))
    done = site.python("-c", WATCH, RLCORE_PLUGINS="good,bad")
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert [line for line in told if line.startswith("good")] == ["good 1", "good 2", "good 3", "good end", "good 4"]
    assert [line for line in told if line.startswith("bad")] == ["bad 1", "bad 4"]
    assert done.stderr.count("] observer_dropped") == 2
    assert "bad:main" in done.stderr


def test_an_observer_that_raises_ends_a_strict_run(site: Site) -> None:
    site.install("bad", OBSERVER.format(name="bad", then="raise ValueError('no')"))
    done = site.python("-c", WATCH, RLCORE_STRICT_PLUGINS="1")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("PluginError: bad:main: on_step raised ValueError: no")


def test_an_interrupt_in_an_observer_ends_the_run(site: Site) -> None:
    site.install("bad", OBSERVER.format(name="bad", then="raise KeyboardInterrupt"))
    done = site.python("-c", WATCH, RLCORE_PLUGINS="bad")
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"
