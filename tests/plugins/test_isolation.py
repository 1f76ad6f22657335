"""Tests of plugin isolation: for every kind of failure, all else works and one line reports the failure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from depths import by_day
from dists import GOOD, Site

HOOKED = "from rlcore import hookimpl\n\n@hookimpl\n"
SHOUT = "import sys\nsys.stderr.write('IMPORTED')\n"
NEIGHBOUR = (
    GOOD.format(name="good")
    + "\n@hookimpl\ndef on_step(run, metrics):\n    print('good heard')\n"
    + "\n@hookimpl\ndef register_commands(register):\n    register('greet', 'neighbour_plugin:greet')\n"
    + "\ndef greet(parser):\n    return lambda arguments: print('greetings') or 0\n"
)
HEAVY_REASON = (
    "imports torch when it is loaded, which slows down every command: import it in functions, or register targets as "
    "'module:attribute'"
)


@attrs.frozen
class Case:
    """A failure of a plugin called acme, and how it is reported.

    Attributes:
        state, reason: the state of acme, and the one-line reason; `{site}` and `{second}` stand for folders.
        source: its module.
        install: arguments of `Site.install`, or a function that installs more than acme.
        switches, config: environment variables, and the configuration file of the run.
        imported: whether its module may be imported.
        works: a trainer that still works, or None if only the core does.
        version: the reported version.
    """

    state: str
    reason: str
    source: str | None = GOOD.format(name="bad")
    install: Mapping[str, Any] | Callable[[Site], None] | None = None
    switches: Mapping[str, str] = attrs.Factory(dict)
    config: str = ""
    imported: bool = True
    works: str | None = "good"
    version: str = "0.3"

    def build(self, site: Site) -> None:
        more = self.install if isinstance(self.install, Mapping) else {}
        site.install("acme", self.source, **more)
        site.install("neighbour", NEIGHBOUR)
        if callable(self.install):
            self.install(site)
        (site.elsewhere / "run.yaml").write_text(self.config)


def beside(site: Site) -> Path:
    return site.folder.parent / "second"


def stand_in_for_torch(site: Site) -> None:
    # The real trainer takes seconds per process; a single test below uses it.
    (site.folder / "torch.py").write_text("")


def rival(site: Site) -> None:
    site.install("rival", GOOD.format(name="bad"))


def second_copy(site: Site) -> None:
    site.install("acme", GOOD.format(name="old"), version="0.2", folder=beside(site))


def nameless(site: Site) -> None:
    (site.folder / "acme-0.3.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\n")


CASES = {
    "raises at import": Case("broken", "ValueError: no", "raise ValueError('no')\n"),
    "leaves at import": Case("broken", "SystemExit: 3", "raise SystemExit(3)\n"),
    "imports torch": Case("heavy", HEAVY_REASON, "import torch\n" + GOOD.format(name="bad"), stand_in_for_torch),
    "syntax error": Case("broken", "SyntaxError: invalid syntax (acme_plugin.py, line 1)", "def f(:\n"),
    "missing dependency": Case(
        "broken", "ModuleNotFoundError: No module named 'acme_is_not_there'", "import acme_is_not_there\n"
    ),
    "entry point to no module": Case("broken", "ModuleNotFoundError: No module named 'acme_plugin'", None),
    "entry point to no attribute": Case(
        "broken", "AttributeError: module 'acme_plugin' has no attribute 'Door'",
        install={"entry_points": "[rlcore]\nmain = acme_plugin:Door\n"},
    ),
    "registers twice": Case(
        "broken", "it registers trainer 'bad' twice", GOOD.format(name="bad") + "    register('bad', 'json:loads')\n"
    ),
    "raises after half its registrations": Case(
        "broken", "RuntimeError: half way", GOOD.format(name="bad") + "    raise RuntimeError('half way')\n"
    ),
    "misspelt hook": Case(
        "broken", "rlcore has no hook 'on_stpe'; did you mean 'on_step'?", HOOKED + "def on_stpe(run): ...\n"
    ),
    "unknown argument": Case(
        "broken", "hook on_step has no argument 'metric' (did you mean 'metrics'?); it takes run, metrics",
        HOOKED + "def on_step(run, metric): ...\n",
    ),
    "requires another rlcore": Case(
        "incompatible", "needs rlcore>=9, this is rlcore 0.1.0", SHOUT, {"requires": ("rlcore>=9",)}, imported=False
    ),
    "one name in two dists": Case(
        "conflict", "rival 0.3 also registers trainer 'bad': use 'acme:bad'", install=rival, works="acme:bad"
    ),
    "twice on the path": Case(
        "ok", "note: acme is installed 2 times: 0.3 in {site} is used, 0.2 in {second} is not",
        install=second_copy,
    ),
    "disabled by variable": Case(
        "disabled", "RLCORE_DISABLE_PLUGINS names it", SHOUT, switches={"RLCORE_DISABLE_PLUGINS": "Acme"},
        imported=False,
    ),
    "disabled by configuration": Case(
        "disabled", "plugins.disable in the configuration names it", SHOUT, config="plugins: {disable: [Acme]}\n",
        imported=False,
    ),
    "left out by configuration": Case(
        "disabled", "plugins.only in the configuration does not name it", SHOUT,
        config="plugins: {only: [neighbour]}\n", imported=False,
    ),
    "allow-list empty": Case(
        "disabled", "RLCORE_PLUGINS does not name it", SHOUT, switches={"RLCORE_PLUGINS": ""}, imported=False,
        works=None,
    ),
    "metadata without a name": Case(
        "broken", "its metadata cannot be read: ValueError: it has no name",
        install=nameless, version="?",
    ),
    "says nothing of what it raises": Case(
        "broken", "Mute", "class Mute(Exception):\n    def __str__(self): raise ValueError\nraise Mute\n"
    ),
    "speaks in many lines": Case(
        "broken", "one", "from rlcore.errors import PluginError\nraise PluginError('one\\ntwo')\n"
    ),
}  # fmt: skip

COMMANDS = """
import contextlib, io, json
from rlcore.cli import main
def answer(*arguments):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main(arguments) == 0, arguments
    return said.getvalue()
print(answer("show", "{name}").splitlines()[0] if {shows} else "no show")
print(json.dumps(json.loads(answer("list-plugins", "--json"))))
if {works}:
    print(answer("greet"), end="")
main(["--commands"])
"""
USE = """
import os
from rlcore.config import load_yaml
from rlcore.plugins.observers import Observers
from rlcore.plugins.registry import registries
from rlcore.settings import plugins_section
from rlcore.plugins.metadata import configured
section = plugins_section(load_yaml("run.yaml"), "run.yaml")
with configured(section.disable, section.only):
    print(registries().{registry}.get("{name}").target().__name__)
    Observers().on_step(None, {{}})
    os.environ["RLCORE_STRICT_PLUGINS"] = "1"
    registries()
"""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", by_day(CASES, list(CASES)[::2]))
def test_a_failing_plugin_disturbs_nothing_and_is_reported_in_one_line(name: str, site: Site) -> None:
    case = CASES[name]
    case.build(site)
    seen = {"path": (beside(site),), **case.switches}
    reason = case.reason.format(site=site.folder, second=beside(site))
    strict = {**seen, "RLCORE_STRICT_PLUGINS": "1"}

    listing = site.python("-m", "rlcore", "list-plugins", "--config", "run.yaml", **strict)
    lines = [line.strip() for line in listing.stdout.splitlines()]
    is_fault = case.state != "disabled"  # what a person disabled is no complaint
    assert (listing.returncode, listing.stderr) == (0, "")
    row = next(line for line in lines if line.startswith("acme "))
    assert row.split()[2] == case.state
    assert reason in (lines if case.state == "ok" else [lines[lines.index(row) + 1]])
    assert row.split()[3:] == (["trainers:", "bad"] if case.state in {"ok", "heavy", "conflict"} else [])

    shows = case.switches.get("RLCORE_PLUGINS") != ""  # without packages there is no `rlcore show`
    commands = COMMANDS.format(name=case.works or "memory", works=bool(case.works), shows=shows)
    others = site.python("-c", commands, **strict)
    assert others.returncode == 0, others.stderr
    shown, listed, *greeting, usage = others.stdout.partition("\n\n")[0].splitlines()
    assert greeting == ["greetings"] * bool(case.works)
    assert usage.startswith("usage: rlcore")
    assert ("    greet       (neighbour 0.3)" in others.stdout.splitlines()) == bool(case.works)
    is_unloaded = case.state in {"broken", "incompatible"} or bool(case.config)  # --commands reads no configuration
    assert (
        f"Not loaded: acme {case.version}; see rlcore list-plugins." in " ".join(others.stdout.split())
    ) == is_unloaded
    expected = ("trainer 'good'", "trainer 'bad'", "rollout store 'memory'") if shows else ("no show",)
    assert shown.startswith(expected)
    acme = next(plugin for plugin in json.loads(listed)["plugins"] if plugin["dist"] == "acme")
    assert case.config or acme["state"] == case.state

    where = ("trainers", case.works) if case.works else ("rollout_stores", "memory")
    used = site.python("-c", USE.format(registry=where[0], name=where[1]), **seen)
    assert used.returncode == int(is_fault), used.stderr
    assert used.stdout == ("dumps\ngood heard\n" if case.works else "MemoryStore\n"), used.stderr
    refused = "PluginError: RLCORE_STRICT_PLUGINS is set"
    assert (refused in used.stderr) == is_fault
    said = reason.removeprefix("note: ") if case.state == "ok" else f"acme {case.version} is {case.state}: {reason}"
    assert any(line.endswith(f"and {said}") for line in used.stderr.splitlines()) == is_fault, used.stderr
    assert case.imported or "IMPORTED" not in listing.stderr + used.stderr


@pytest.mark.slow
def test_check_and_strict_mode_accept_working_plugins(site: Site) -> None:
    site.install("neighbour", NEIGHBOUR)
    (site.elsewhere / "run.yaml").touch()
    done = site.python("-m", "rlcore", "list-plugins", "--check", "--config", "run.yaml", RLCORE_PLUGINS="neighbour")
    assert done.returncode == 0, done.stdout
    used = site.python("-c", USE.format(registry="trainers", name="good"))
    assert (used.returncode, used.stdout) == (0, "dumps\ngood heard\n"), used.stderr


UNIMPORTABLE = """
from rlcore import hookimpl

@hookimpl
def register_rewards(register):
    register("right", "json:dumps")
    register("lost", "acme_lost:reward")
    register("gone", "json:no_such")
    register("leaving", "acme_leaving:reward", config="acme_leaving:Options")
"""


UNIMPORTED = """\
'lost' (acme 0.3): cannot load its target 'acme_lost:reward': ModuleNotFoundError: No module named 'acme_lost'
'gone' (acme 0.3): cannot load its target 'json:no_such': AttributeError: module 'json' has no attribute 'no_such'
'leaving' (acme 0.3): cannot load its target 'acme_leaving:reward': SystemExit: no licence
'leaving' (acme 0.3): cannot load its config 'acme_leaving:Options': SystemExit: no licence
"""


@pytest.mark.slow
def test_check_imports_the_target_and_the_options_of_every_component(site: Site) -> None:
    site.install("acme", UNIMPORTABLE)
    (site.folder / "acme_leaving.py").write_text("print('bye')\nraise SystemExit('no licence')\n")
    loaded = site.python("-m", "rlcore", "list-plugins", "--json")
    assert loaded.returncode == 0
    assert "errors" not in loaded.stdout
    done = site.python("-m", "rlcore", "list-plugins", "--json", "--check", RLCORE_PLUGINS="acme")
    errors = {each["dist"]: each["errors"] for each in json.loads(done.stdout)["plugins"]}
    assert done.returncode == 1
    assert errors["rlcore"] == []
    assert errors["acme"] == [f"reward {each}" for each in UNIMPORTED.splitlines()]


@pytest.mark.slow
def test_a_plugin_that_imports_torch_itself_is_heavy_and_still_works(site: Site) -> None:
    # Once with the real trainer, through a library, and with a second plugin that finds it and keeps part of it.
    (site.folder / "library.py").write_text("import torch.nn\n")
    site.install("acme", "import library\n" + GOOD.format(name="bad"))
    site.install("beta", "from beta_inner import Layer\n" + GOOD.format(name="worse"))
    (site.folder / "beta_inner.py").write_text("from torch.nn import Linear as Layer\n")
    site.install("gamma", "def late():\n    import torch\n" + GOOD.format(name="fine"))
    plugins = site.plugins()
    assert [plugins[dist]["state"] for dist in ("acme", "beta", "gamma")] == ["heavy", "heavy", "ok"]
    assert plugins["beta"]["reason"] == HEAVY_REASON
    assert plugins["beta"]["components"] == {"trainers": ["worse"]}


def test_a_heavy_plugin_is_detected_also_if_its_imports_are_already_loaded(site: Site) -> None:
    stand_in_for_torch(site)
    package = site.folder / "acme_plugin"
    package.mkdir()
    (package / "__init__.py").write_text("from acme_plugin.inner import *\n" + GOOD.format(name="bad"))
    (package / "inner.py").write_text("import torch as t\n__all__ = []\n")
    site.install("acme")
    code = (
        "import torch; from rlcore.plugins.discovery import discover\nprint([p.state for p in discover().plugins][1])"
    )
    assert site.python("-c", code).stdout == "heavy\n"


def test_the_check_for_heavy_imports_loads_no_lazy_module(site: Site) -> None:
    lazy = """
import types
class Lazy(types.ModuleType):
    def __getattribute__(self, name):
        raise SystemExit(f"woken by {name}")
sleeping = Lazy("torch")
"""
    site.install("acme", lazy + GOOD.format(name="bad"))
    code = (
        "import acme_plugin\nfrom rlcore.plugins.discovery import heavy_imports\n"
        "print(heavy_imports('acme_plugin', ()))"
    )
    assert site.python("-c", code).stdout == "[]\n"


def test_a_heavy_plugin_with_a_name_conflict_is_listed_with_both_reasons(site: Site) -> None:
    stand_in_for_torch(site)
    site.install("acme", "import torch\n" + GOOD.format(name="bad"))
    rival(site)
    plugins = site.plugins()
    assert plugins["acme"]["state"] == "conflict"
    assert plugins["acme"]["reason"] == f"rival 0.3 also registers trainer 'bad': use 'acme:bad'; {HEAVY_REASON}"
