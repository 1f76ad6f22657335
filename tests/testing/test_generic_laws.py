"""Each law about a dist is broken by one that is really installed, in a folder on sys.path, and kept by a right one."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from laws_held import Wrong, assert_all_seen, assert_broken, assert_kept, law_called, law_name
from sites import METADATA, Site

from rlcore_testing import Law, Subject
from rlcore_testing.law import laws_in
from rlcore_testing.laws import dist

REQUIREMENT = ("rlcore>=0.1,<0.2",)
RIGHT = """
from rlcore import hookimpl

@hookimpl
def register_rewards(register):
    register("polite", "json:dumps", summary="says please")
"""
OBSERVER = """
from rlcore import hookimpl

@hookimpl
def on_step(run, metrics):
    pass
"""
COUNTING = """
from rlcore import hookimpl

seen = []

@hookimpl
def register_rewards(register):
    seen.append(1)
    register(f"polite-{len(seen)}", "json:dumps")
"""
HERE_ONLY = """
import os

from rlcore import hookimpl

def find(process):
    return {os.getpid(): polite}[process]

class Reward:
    def __call__(self, outputs):
        return [0.0 for _ in outputs]
    def __reduce__(self):
        return find, (os.getpid(),)

polite = Reward()

@hookimpl
def register_rewards(register):
    register("polite", polite)
"""


WRAPPING = """
import functools

from rlcore import hookimpl

@hookimpl
def wrap_component(component, config):
    return KINDS.get(component.kind)

class Timed:
    def __init__(self, inner):
        self.__wrapped__ = inner
    def __call__(self, *arguments, **options):
        return self.__wrapped__(*arguments, **options)
    def __getattr__(self, name):
        return getattr(self.__wrapped__, name)

def bare(inner):
    return lambda *arguments, **options: inner(*arguments, **options)

def of_functions(inner):
    return functools.wraps(inner)(lambda *arguments, **options: inner(*arguments, **options))

def of_methods(policy):
    class Policy:
        score, reference_score = policy.score, policy.reference_score
    return Policy()

KINDS = {
    "samplers": Timed, "rewards": Timed, "trainers": Timed, "loggers": Timed, "architectures": lambda policy: policy
}
"""


@attrs.frozen
class Dist:
    """Say how a dist `acme` differs from a right one."""

    plugin: str = RIGHT
    entry: str = "acme.plugin"
    requires: tuple[str, ...] = REQUIREMENT
    without: str = "nothing"

    def install(self, site: Site) -> Subject:
        files = {"acme/__init__.py": "", "acme/plugin.py": self.plugin, "acme/py.typed": ""}
        kept = {path: text for path, text in files.items() if self.without not in path}
        lines = "\n".join(line for line in METADATA.splitlines() if not line.startswith(self.without))
        site.install("acme", kept, entry=self.entry, requires=self.requires, metadata=lines)
        return site.subject("acme")


DISTS = {
    "right": Dist(),
    "observer": Dist(OBSERVER),
    "raising": Dist("raise RuntimeError('no disk')"),
    "misspelt": Dist(RIGHT.replace("rewards(", "reward(")),
    "old": Dist(requires=("rlcore<0.1",)),
    "empty": Dist("x = 1\n"),
    "nowhere": Dist(entry="acme.plugins"),
    "no_attribute": Dist(entry="acme.plugin:hooks"),
    "no_name": Dist(entry="acme plugin"),
    "heavy": Dist("import torch\n" + RIGHT),
    "slow": Dist("import time\ntime.sleep(0.6)\n" + RIGHT),
    "printing": Dist("print('hello')\n" + RIGHT),
    "writing": Dist("open('left', 'w').close()\n" + RIGHT),
    "setting": Dist("import os\nos.environ['ACME'] = '1'\n" + RIGHT),
    "seeding": Dist("import random\nrandom.seed(0)\n" + RIGHT),
    "logging": Dist("import logging\nlogging.basicConfig()\n" + RIGHT),
    "threading": Dist("import threading as t\nt.Timer(3, print).start()\n" + RIGHT),
    "counting": Dist(COUNTING),
    "by_process": Dist("import os\n" + RIGHT.replace('"polite"', 'f"polite-{os.getpid()}"')),
    "nameless": Dist(RIGHT.replace('"json:dumps"', "lambda outputs: [0]")),
    "here_only": Dist(HERE_ONLY),
    "wrapping": Dist(WRAPPING),
    **{
        name: Dist(f"{WRAPPING}KINDS = {{{kind!r}: {wrapper}}}\n")
        for name, kind, wrapper in [
            ("wrapping_barely", "schedulers", "bare"),
            ("wrapping_functions", "rewards", "of_functions"),
            ("wrapping_methods", "architectures", "of_methods"),
            ("wrapping_trainers", "trainers", "bare"),
            ("wrapping_loggers", "loggers", "bare"),
        ]
    },
    "unbounded_above": Dist(requires=("rlcore>=0.1",)),
    "unbounded_below": Dist(requires=("rlcore<0.2",)),
    "requires_none": Dist(requires=("attrs",)),
    "for_some": Dist(requires=("rlcore>=0.1,<0.2; sys_platform == 'other'",)),
    "no_summary": Dist(without="Summary"),
    "no_licence": Dist(without="License"),
    "no_python": Dist(without="Requires-Python"),
    "untyped": Dist(without="py.typed"),
}
WRONG = [
    Wrong("it_loads", "raising", "entry point 'main' is broken: RuntimeError: no disk"),
    Wrong("it_loads", "misspelt", "rlcore has no hook 'register_reward'; did you mean 'register_rewards'?"),
    Wrong("it_loads", "old", "is incompatible: needs rlcore<0.1"),
    Wrong("it_loads", "nowhere", "No module named 'acme.plugins'"),
    Wrong("it_loads", "nowhere", "python -c 'import acme.plugins'"),
    Wrong("it_loads", "no_attribute", "python -c 'from acme.plugin import hooks'"),
    Wrong("it_loads", "heavy", "is heavy: imports torch"),
    Wrong("it_implements_a_hook", "empty", "acme implements no hook"),
    Wrong("the_entry_point_can_be_imported", "nowhere", "is 'acme.plugins': No module named 'acme.plugins'"),
    Wrong("the_entry_point_can_be_imported", "no_attribute", "has no attribute 'hooks'"),
    Wrong("the_entry_point_can_be_imported", "no_name", "is 'acmeplugin': No module named 'acmeplugin'"),
    Wrong("the_import_is_light", "heavy", "its import loads torch"),
    Wrong("the_import_is_light", "raising", "RuntimeError: no disk"),
    Wrong("the_import_is_quick", "slow", "its import takes "),
    Wrong("the_import_is_quick", "slow", "python -X importtime -c 'import acme.plugin'"),
    Wrong("the_import_changes_nothing", "printing", "it printed 'hello\\n'"),
    Wrong("the_import_changes_nothing", "writing", "the files in the working folder: new left"),
    Wrong("the_import_changes_nothing", "setting", "the environment: it sets ACME"),
    Wrong("the_import_changes_nothing", "seeding", "the random state"),
    Wrong("the_import_changes_nothing", "logging", "the root logger: new <StreamHandler"),
    Wrong("the_import_changes_nothing", "threading", "the threads: new Thread-"),
    Wrong("registering_again_gives_the_same", "counting", "without rewards: polite-2, with rewards: polite-3"),
    Wrong("registering_again_gives_the_same", "by_process", "other components in a new process"),
    Wrong("a_spawned_worker_has_the_same_components", "nameless", "cannot be sent to another process"),
    Wrong("a_spawned_worker_has_the_same_components", "by_process", "is not registered in the new process"),
    Wrong("a_spawned_worker_has_the_same_components", "here_only", "rewards:polite cannot be unpickled, KeyError"),
    Wrong("wrappers_keep_the_interface", "wrapping_barely", "has no parameter optimizer, num_warmup_steps"),
    Wrong("wrappers_keep_the_interface", "wrapping_functions", "has no attribute close"),
    Wrong("wrappers_keep_the_interface", "wrapping_methods", "has no attribute"),
    Wrong("wrappers_keep_the_interface", "wrapping_trainers", "has no attribute default_budget, load_state_dict, "),
    Wrong("wrappers_keep_the_interface", "wrapping_loggers", "has no attribute close, completions, metrics"),
    Wrong("the_requirement_on_rlcore_is_bounded", "unbounded_above", "requires 'rlcore>=0.1', which has no upper"),
    Wrong("the_requirement_on_rlcore_is_bounded", "unbounded_below", "requires 'rlcore<0.2', which has no lower"),
    Wrong("the_requirement_on_rlcore_is_bounded", "requires_none", "its metadata does not require rlcore"),
    Wrong("the_requirement_on_rlcore_is_bounded", "for_some", "its metadata does not require rlcore"),
    Wrong("the_metadata_is_complete", "no_summary", "lacks 'description'"),
    Wrong("the_metadata_is_complete", "no_licence", "lacks 'license'"),
    Wrong("the_metadata_is_complete", "no_python", "lacks 'requires-python'"),
    Wrong("it_ships_its_types", "untyped", "contains no py.typed"),
]


@pytest.fixture(autouse=True)
def _a_process_for_each_dist(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no worker that loads the components of every installed package, for the only test of a dist."""
    monkeypatch.setattr(dist, "worker", dict)


@pytest.mark.parametrize("case", WRONG, ids=str)
def test_a_wrong_dist_breaks_the_law(case: Wrong, site: Site) -> None:
    assert_broken(dist, case, DISTS[case.who].install(site))


def test_every_law_fails_for_at_least_one_wrong_component() -> None:
    assert_all_seen(dist, WRONG)


@pytest.mark.parametrize("name", ["right", "observer", "wrapping"])
@pytest.mark.parametrize("law", laws_in(dist), ids=law_name)
def test_a_right_dist_keeps_the_law(law: Law, name: str, site: Site) -> None:
    of_wrappers = law.name == "wrappers_keep_the_interface"
    assert_kept(law, DISTS[name].install(site), but=[law.name] * (of_wrappers and name != "wrapping"))


def test_a_single_module_has_no_types_to_ship(site: Site) -> None:
    site.install("acme", {"acme_alone.py": RIGHT}, entry="acme_alone")
    (law,) = (law for law in laws_in(dist) if law.name == "it_ships_its_types")
    assert not law.when(site.subject("acme"))


def test_a_disabled_dist_breaks_the_law_that_it_loads(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    DISTS["right"].install(site)
    monkeypatch.setenv("RLCORE_DISABLE_PLUGINS", "acme")
    from rlcore.plugins.discovery import discover

    plugins = tuple(plugin for plugin in discover().plugins if plugin.dist == "acme")
    with pytest.raises(AssertionError, match="is disabled: RLCORE_DISABLE_PLUGINS names it; unset"):
        law_called(dist, "it_loads")(Subject("acme", plugins))


def test_laws_leave_the_working_folder_unchanged(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    subject = DISTS["right"].install(site)
    for law in laws_in(dist):
        if law.when(subject):
            law(subject)
    assert not list((tmp_path / "here").iterdir())
