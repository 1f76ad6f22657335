"""Tests of errors about unknown names: near matches, other sections, and packages that know other libraries."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import rlcore
from rlcore.config import structure, yaml_files
from rlcore.errors import ConfigError, UnknownArgument
from rlcore.settings import RunConfig, SamplingConfig, TrainConfig

Install = Callable[[str], None]
ACME = """
from rlcore.config.yaml_files import Synonym

def find_synonym(name, kind):
    return Synonym(name, (("run.steps",),), "doubled") if (name, kind) == ("laps", "options") else None
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return a function after which a module with this source is all that knows other libraries."""

    def only(source: str) -> None:
        (tmp_path / "acme_names.py").write_text(source)
        point = EntryPoint("names", "acme_names:find_synonym", yaml_files.GROUP)
        monkeypatch.setattr(yaml_files, "entry_points", lambda group: [point])
        monkeypatch.delitem(sys.modules, "acme_names", raising=False)
        yaml_files.find_synonym.cache_clear()

    monkeypatch.syspath_prepend(tmp_path)
    yield only
    yaml_files.find_synonym.cache_clear()


@pytest.mark.parametrize("source", ["raise SystemError('no')", "def find_synonym(name, kind): raise ValueError(name)"])
@pytest.mark.parametrize(
    ("section", "name", "expected"),
    [
        (TrainConfig, "steps", r"x: steps: no such option; did you mean run\.steps\?"),
        (RunConfig, "stepps", r"did you mean 'steps'\?"),
        (RunConfig, "keep_lst", r"there are name, root"),
        (SamplingConfig, "temprature", r"did you mean 'temperature'\?"),
        (SamplingConfig, "max_completion_length", r"no such option; there are "),
    ],
)
def test_near_matches_and_other_sections_are_named_where_no_package_knows_a_name(
    section: type, name: str, expected: str, source: str, install: Install
) -> None:
    install(source)
    with pytest.raises(ConfigError, match=expected):
        structure(section, {name: 1}, where="x")


def test_a_package_names_the_option_that_replaces_one_of_another_library(install: Install) -> None:
    install(ACME)
    with pytest.raises(ConfigError, match=r"laps: no such option; use run\.steps \(doubled\)"):
        structure(TrainConfig, {"laps": 1}, where="x")
    with pytest.raises(UnknownArgument, match=r"use run\.steps \(doubled\); as an argument: run={\"steps\": ...}"):
        rlcore.train("gpt2", laps=3)
