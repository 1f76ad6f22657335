"""Tests that a plugin's output, unusual characters or broken metadata affect no command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dists import GOOD, Site, state_of

BAD = GOOD.format(name="bad")
COMMANDS = (["list-plugins"], ["doctor"], ["show", "acme:bad"], ["show", "--wrapped"])


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_text_printed_by_a_plugin_is_not_part_of_json_output(site: Site, command: list[str]) -> None:
    wrap = "\n@hookimpl\ndef wrap_component(component):\n    print('loud hook')\n"
    options = "from rlcore.config import config\nprint('loud options')\n@config\nclass Options:\n    pass\n"
    (site.folder / "acme_options.py").write_text(options)
    target = BAD.replace('"json:dumps"', '"json:dumps", config="acme_options:Options"')
    site.install(
        "acme",
        "import os\nprint('loud import')\nos.write(1, b'raw import\\n')\n"
        f"{target}    print('loud registration')\n{wrap}",
    )
    done = site.python("-m", "rlcore", *command, "--json")
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)
    assert {"loud import", "raw import", "loud registration"} <= set(done.stderr.splitlines())
    assert ("loud hook" in done.stderr) == ("--wrapped" in command)
    assert ("loud options" in done.stderr) == ("acme:bad" in command)


def test_a_plugin_that_replaces_standard_output_does_not_affect_the_command(site: Site) -> None:
    site.install("acme", f"import sys\nsys.stdout = None\n{BAD}")
    assert site.plugins()["acme"]["state"] == "ok"


def test_the_module_path_and_the_working_folder_are_restored_after_a_plugin_loads(site: Site) -> None:
    site.install("acme", f"import os, sys\nsys.path.clear()\nsys.path.append('own')\nos.chdir('/')\n{BAD}")
    site.install("best", GOOD.format(name="best"))
    assert site.plugins()["best"]["state"] == "ok"
    code = (
        "import os, sys; from rlcore.plugins.registry import registries; before = os.getcwd(), list(sys.path)\n"
        "registries()\n"
        "print(os.getcwd() == before[0], sys.path == ['own', *before[1]])"
    )
    assert site.python("-c", code).stdout == "True True\n"


@pytest.mark.parametrize("command", [["list-plugins"], ["doctor"], ["list-plugins", "--json"]], ids=" ".join)
def test_a_reason_with_characters_that_the_output_cannot_encode_is_shown(site: Site, command: list[str]) -> None:
    site.install("acme", "raise ValueError('caf\\xe9 \\udcff')\n")
    done = site.python("-m", "rlcore", *command, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "ValueError: caf\\" in done.stdout


def test_a_very_long_reason_is_truncated(site: Site) -> None:
    site.install("acme", "raise ValueError('x' * 100_000)\n")
    state, reason = state_of(site.plugins()["acme"])
    assert (state, len(reason), reason[-5:]) == ("broken", 504, "x ...")


def test_extras_behind_an_entry_point_are_ignored(site: Site) -> None:
    site.install("acme", BAD, entry_points="[rlcore]\nmain = acme_plugin [fast,slow]\n")
    plugin = site.plugins()["acme"]
    assert (state_of(plugin), plugin["module"]) == (("ok", ""), "acme_plugin")


@pytest.mark.parametrize(
    ("source", "entry_point", "reason"),
    [
        ("", "acme_plugin", "it implements no hook; its entry point must name a module that does"),
        (
            "from rlcore import hookimpl\nclass Door:\n    @hookimpl\n    def on_step(self, run): ...\n",
            "acme_plugin:Door",
            "its entry point names the class Door; it must name a module or an object",
        ),
    ],
    ids=["nothing", "a class"],
)
def test_an_entry_point_to_something_that_is_no_plugin_is_broken(
    site: Site, source: str, entry_point: str, reason: str
) -> None:
    site.install("acme", source, entry_points=f"[rlcore]\nmain = {entry_point}\n")
    assert state_of(site.plugins()["acme"]) == ("broken", reason)


def test_objects_and_plugins_with_only_hooks_of_later_versions_are_accepted(site: Site) -> None:
    door = "from rlcore import hookimpl\nclass Door:\n    @hookimpl\n    def on_step(self, run): ...\ndoor = Door()\n"
    site.install("acme", door, entry_points="[rlcore]\nmain = acme_plugin:door\n")
    later = "import pluggy\n@pluggy.HookimplMarker('rlcore')(optionalhook=True)\ndef on_later(run): ...\n"
    site.install("beta", later)
    assert [state_of(site.plugins()[dist]) for dist in ("acme", "beta")] == [("ok", ""), ("ok", "")]


@pytest.mark.slow
def test_metadata_without_a_version_or_any_content_disturbs_no_command(site: Site) -> None:
    site.install("acme", BAD)
    (site.folder / "acme-0.3.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\n")
    second = site.folder.parent / "second"
    site.install("acme", BAD, version="0.2", folder=second)
    site.install("beta", GOOD.format(name="beta"))
    (site.folder / "beta-0.3.dist-info" / "METADATA").write_bytes(b"\xff\xfe")
    plugins = site.plugins(path=(second,))
    assert site.notes == [f"acme is installed 2 times: ? in {site.folder} is used, 0.2 in {second} is not"]
    assert (plugins["acme"]["version"], plugins["beta"]["state"]) == ("?", "broken")
    done = site.python("-m", "rlcore", "doctor")
    assert done.returncode == 0, done.stderr
    assert "beta ? is broken: its metadata cannot be read: UnicodeDecodeError" in done.stdout


def test_tracing_names_a_plugin_whose_import_does_not_return(site: Site) -> None:
    site.install("acme", "import os\nos._exit(7)\n")
    done = site.python("-m", "rlcore", "list-plugins", RLCORE_TRACE_PLUGINS="1")
    assert done.returncode == 7
    assert done.stderr.splitlines()[-1] == "rlcore: acme 0.3: acme_plugin: loading"


def test_an_observer_cannot_change_the_metrics_by_which_a_run_is_judged(site: Site) -> None:
    source = "from rlcore import hookimpl\n@hookimpl\ndef {}(metrics): metrics.clear()\n"
    site.install("acme", source.format("on_step"))
    site.install("beta", source.format("on_evaluate"))
    code = (
        "from rlcore.plugins.observers import Observers\nmetrics, watch = {'loss/policy': 1.0}, Observers()\n"
        "watch.on_step(None, metrics)\nwatch.on_evaluate(None, metrics)\nprint(metrics)"
    )
    assert site.python("-c", code).stdout == "{'loss/policy': 1.0}\n"
