"""Tests of the configuration section `plugins`: which plugins a run loads, in all its processes, and no later run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from dists import GOOD, Site

from rlcore import errors
from rlcore.config import structure
from rlcore.plugins.metadata import configured, disabled_reason, selection
from rlcore.settings import PluginsConfig, TrainConfig, plugins_section

SEEN = "def seen(): return [c.name for c in registries().trainers if c.name in {'one', 'two'}]\n"
IMPORTS = (
    "import os, sys\nfrom rlcore.plugins.registry import registries\nfrom rlcore.plugins.metadata import configured\n"
)
BEGIN = IMPORTS + SEEN


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    made.install("acme-one", GOOD.format(name="one"))
    made.install("acme-two", GOOD.format(name="two"))
    return made


def test_a_plugin_takes_part_only_if_environment_and_configuration_both_allow_it() -> None:
    names = {"acme-dpo", "dpo"}
    section = {"RLCORE_CONFIG_PLUGINS": "Acme_DPO"}
    assert disabled_reason(names, section) == ""
    assert disabled_reason(names, {"RLCORE_PLUGINS": "dpo", **section}) == ""  # by either of its names
    assert disabled_reason(names, {"RLCORE_PLUGINS": "x", **section}) == "RLCORE_PLUGINS does not name it"
    assert disabled_reason(names, {"RLCORE_PLUGINS": "dpo", "RLCORE_CONFIG_PLUGINS": ""}) == (
        "plugins.only in the configuration does not name it"
    )
    assert disabled_reason(names, {"RLCORE_CONFIG_DISABLE_PLUGINS": "x,DPO", **section}) == (
        "plugins.disable in the configuration names it"
    )


def test_the_section_plugins_applies_only_within_its_block() -> None:
    before = selection(os.environ)
    with configured(["a"], ["b", "c"]):
        outer = selection(os.environ)
        with configured([], None):
            assert selection(os.environ) == before
        with configured([], []):
            assert selection(os.environ) not in {before, outer}  # an empty list is different from an omitted one
        assert selection(os.environ) == outer != before
    assert selection(os.environ) == before


def test_two_runs_in_one_process_see_their_own_plugins_and_load_each_once(site: Site) -> None:
    code = BEGIN + (
        "with configured(['acme-one'], None):\n    print(seen()); first = registries()\n"
        "try:\n    with configured([], ['ACME.one']):\n        print(seen()); raise KeyError\n"
        "except KeyError: print(seen())\n"
        "with configured(['acme-one'], None):\n    print(registries() is first)"
    )
    assert site.python("-c", code).stdout.splitlines() == ["['two']", "['one']", "['one', 'two']", "True"]


@pytest.mark.slow
def test_forked_and_spawned_workers_see_the_plugins_of_their_run(site: Site) -> None:
    (site.elsewhere / "work.py").write_text(
        BEGIN
        + "import multiprocessing as mp\ndef tell(queue): queue.put(seen())\n"
        + "if __name__ == '__main__':\n"
        + "    for section in ((), None), (('acme-one',), None), ((), ()):\n"
        + "        with configured(*section):\n"
        + "            for method in ('fork', 'spawn'):\n"
        + "                context = mp.get_context(method); queue = context.Queue()\n"
        + "                worker = context.Process(target=tell, args=(queue,)); worker.start()\n"
        + "                print(queue.get(timeout=600) == seen(), len(seen())); worker.join()\n"
    )
    done = site.python("work.py")
    assert done.stdout.splitlines() == [f"True {count}" for count in (2, 2, 1, 1, 0, 0)], done.stderr


@pytest.mark.slow
def test_list_plugins_shows_the_plugins_of_a_configuration_and_ignores_its_other_sections(site: Site) -> None:
    (site.elsewhere / "run.yaml").write_text("trainer: 3\nplugins: {disable: [one-acme], only: [acme-one]}\n")
    done = site.python("-m", "rlcore", "list-plugins", "--config", "run.yaml")
    assert "plugins.only in the configuration does not name it" in done.stdout
    assert "note: plugins.disable in the configuration names 'one-acme', which is not installed\n" in done.stdout
    assert "plugins." not in site.python("-m", "rlcore", "list-plugins").stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("plugins: [one]", "plugins = ['one']: must be a mapping of options"),
        ("plugins: {disable: one}", "plugins.disable = 'one': must be a list (plugins that are not loaded)"),
        ("plugins: {disabel: [one]}", "plugins.disabel: no such option; did you mean 'disable'?"),
    ],
)
def test_a_section_that_cannot_be_read_is_an_error_with_its_place(site: Site, text: str, said: str) -> None:
    (site.elsewhere / "run.yaml").write_text(text)
    done = site.python("-m", "rlcore", "list-plugins", "--config", "run.yaml")
    assert (done.returncode, done.stderr) == (1, f"ConfigError: run.yaml: {said}\n")


def test_the_section_plugins_is_read_alone_as_in_a_whole_configuration() -> None:
    values = {"plugins": {"disable": ["a"]}}
    assert plugins_section(values, "x") == structure(TrainConfig, values).plugins == PluginsConfig(disable=("a",))
    assert plugins_section({"plugins": None}, "x") == plugins_section({}, "x") == PluginsConfig()
    with pytest.raises(errors.ConfigError):
        plugins_section({"plugins": 0}, "x")
