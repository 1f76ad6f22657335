"""Tests of plugin discovery with real dists on a real path, each in its own processes."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import pytest
from dists import GOOD, Site, state_of


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_plugins_and_the_core_are_found_by_their_entry_points(site: Site) -> None:
    site.install("acme-nca", GOOD.format(name="nca"))
    plugins = site.plugins()
    assert state_of(plugins["acme-nca"]) == ("ok", "")
    assert plugins["acme-nca"]["components"] == {"trainers": ["nca"]}
    assert plugins["acme-nca"]["version"] == "0.3"
    assert plugins["rlcore"]["components"]["rollout_stores"] == ["memory"]


FAILURES = {
    "no-module": (None, "ModuleNotFoundError: No module named 'no_module_plugin'"),
    "no-dependency": ("import acme_is_not_there\n", "ModuleNotFoundError: No module named 'acme_is_not_there'"),
    "syntax": ("def f(:\n", "SyntaxError: invalid syntax (syntax_plugin.py, line 1)"),
    "exits": ("raise SystemExit(3)\n", "SystemExit: 3"),
    "generator-exit": ("raise GeneratorExit\n", "GeneratorExit"),
    "many-lines": ("raise ValueError('first\\nsecond')\n", "ValueError: first"),
    "misspelt": (
        "from rlcore import hookimpl\n@hookimpl\ndef register_trainer(register): ...\n",
        "rlcore has no hook 'register_trainer'; did you mean 'register_trainers'?",
    ),
    "misspelt-observer": (
        "from rlcore import hookimpl\n@hookimpl\ndef on_steps(run, metrics): ...\n",
        "rlcore has no hook 'on_steps'; did you mean 'on_step'?",
    ),
    "undecorated": (
        "def register_trainers(register): ...\n",
        "register_trainers is not decorated with @rlcore.hookimpl",
    ),
    "raises-half-way": (
        GOOD.format(name="half") + "    raise RuntimeError('half way')\n",
        "RuntimeError: half way",
    ),
    "exits-half-way": (GOOD.format(name="half") + "    raise SystemExit\n", "SystemExit"),
    "twice": (GOOD.format(name="half") + "    register('half', 'json:dumps')\n", "it registers trainer 'half' twice"),
    "bad-name": (
        GOOD.format(name="a:b"),
        "trainer 'a:b': a name consists of letters, digits, '-', '_' and '.', such as 'my-algo'",
    ),
    "bad-target": (
        GOOD.format(name="half") + "    register('x', 'no colon')\n",
        "trainer 'x': target is 'no colon'; it must be callable or 'module:attribute'",
    ),
    "bad-config": (
        GOOD.format(name="half") + "    register('x', print, config=3)\n",
        "trainer 'x': config is 3; it must be a config class, 'module:attribute' or None",
    ),
    "services-of-another-type": (
        "from rlcore import hookimpl\n@hookimpl\ndef register_services(register): register({'decoder': print})\n",
        "it registers {'decoder': <built-in function print>} as services, which must be rlcore.hookspecs.Services(...)",
    ),
    "misspelt-service": (
        (
            "from rlcore import hookimpl\nfrom rlcore.hookspecs import Services\n"
            "@hookimpl\ndef register_services(register): register(Services(decode=print))\n"
        ),
        "TypeError: Services.__init__() got an unexpected keyword argument 'decode'",
    ),
    "services-in-no-order": (
        "from rlcore import hookimpl\n@hookimpl\ndef register_services(register): register(order='tryfirst')\n",
        "it registers services with order='tryfirst', which must be 'first', '' or 'last'",
    ),
    "recursive": (
        "from rlcore.plugins.registry import registries\nregistries()\n",
        "a plugin called registries() while it was being loaded",
    ),
}


def test_a_broken_plugin_breaks_no_other_and_is_listed_with_a_reason_of_one_line(site: Site) -> None:
    for dist, (source, _) in FAILURES.items():
        site.install(dist, source)
    site.install("zzz-good", GOOD.format(name="good"))
    plugins = site.plugins()
    assert {dist: state_of(plugins[dist]) for dist in FAILURES} == {
        dist: ("broken", reason) for dist, (_, reason) in FAILURES.items()
    }
    assert all(plugins[dist]["components"] == {} for dist in FAILURES), "half a registration was kept"
    assert state_of(plugins["zzz-good"]) == ("ok", "")
    assert state_of(plugins["rlcore"]) == ("ok", "")


def test_a_hook_that_wants_an_unknown_argument_is_broken(site: Site) -> None:
    site.install("acme", "from rlcore import hookimpl\n@hookimpl\ndef on_step(run, loss): ...\n")
    site.install("named", "from rlcore import hookimpl\n@hookimpl\ndef on_step(run, *, metrics): ...\n")
    site.install("whole", "from rlcore import hookimpl\n@hookimpl\ndef on_step(run, mine=1, *_, other=2, **__): ...\n")
    plugins = site.plugins()
    assert state_of(plugins["acme"]) == ("broken", "hook on_step has no argument 'loss'; it takes run, metrics")
    assert state_of(plugins["named"]) == (
        "broken", "hook on_step: 'metrics' is keyword-only, and hooks are called by position",
    )  # fmt: skip
    assert state_of(plugins["whole"]) == ("ok", "")


def test_hooks_of_a_refused_plugin_are_never_called(site: Site) -> None:
    site.install(
        "acme",
        GOOD.format(name="half")
        + "    raise RuntimeError\n@hookimpl\ndef on_step(run, metrics):\n    print('called')\n",
    )
    code = "from rlcore.plugins.observers import Observers; Observers().on_step(None, {}); print('done')"
    assert site.python("-c", code).stdout == "done\n"


@pytest.mark.slow
def test_a_plugin_for_another_rlcore_is_never_imported(site: Site) -> None:
    shout = "import sys\nsys.stderr.write('IMPORTED')\n"
    site.install("too-new", shout, requires=("attrs>=1", "RLCORE >=9.1"))
    site.install("too-old", shout, requires=("rlcore<0.0.1; python_version>'3'",))
    site.install("unreadable", shout, requires=("rlcore =>> 1",))
    site.install("extra-only", GOOD.format(name="x"), requires=("rlcore>=9; extra == 'future'",))
    done = site.python("-m", "rlcore", "list-plugins")
    assert "IMPORTED" not in done.stderr
    plugins = site.plugins()
    assert state_of(plugins["too-new"]) == ("incompatible", "needs rlcore>=9.1, this is rlcore 0.1.0")
    assert plugins["too-old"]["state"] == "incompatible"
    assert state_of(plugins["unreadable"]) == ("broken", "its metadata has an unreadable requirement 'rlcore =>> 1'")
    assert plugins["extra-only"]["state"] == "ok"


def test_a_version_that_is_not_there_and_a_slow_import_are_the_state_of_a_plugin_that_works(site: Site) -> None:
    site.install("ahead", GOOD.format(name="new"), requires=("attrs>=999", "attrs; extra == 'x'"))
    site.install("alone", GOOD.format(name="own"), requires=("nowhere-to-be-found",))
    site.install("failing", "import nowhere", requires=("nowhere-to-be-found>2",))
    site.install("slow", "import time\ntime.sleep(3.1)\n" + GOOD.format(name="late"))
    plugins = site.plugins()
    version = importlib.metadata.version("attrs")
    for name, reason in {
        "ahead": f"needs attrs>=999, and {version} is installed: pip install 'attrs>=999'",
        "alone": "needs nowhere-to-be-found, and it is not installed: pip install 'nowhere-to-be-found'",
    }.items():
        assert state_of(plugins[name]) == ("incompatible", reason)
        assert plugins[name]["components"]
    cause = "it needs nowhere-to-be-found>2, and it is not installed: pip install 'nowhere-to-be-found>2'"
    assert state_of(plugins["failing"]) == ("broken", f"ModuleNotFoundError: No module named 'nowhere'; {cause}")
    assert plugins["slow"]["state"] == "heavy"
    assert "s to be loaded, which slows down every command" in plugins["slow"]["reason"]


def test_unreadable_metadata_is_shown_and_breaks_nothing(site: Site) -> None:
    site.install("no-value", entry_points="[rlcore]\nmain\n")
    site.install("no-name", GOOD.format(name="x"))
    (site.folder / "no_name-0.3.dist-info" / "METADATA").unlink()
    site.install("not-a-module", entry_points="[rlcore]\nmain = 3 / 4\n")
    site.install("good", GOOD.format(name="good"))
    plugins = site.plugins()
    assert plugins["good"]["state"] == "ok"
    for dist in ("no-value", "no-name", "not-a-module"):
        assert plugins[dist]["state"] == "broken", dist
        assert plugins[dist]["reason"].startswith("its "), dist


@pytest.mark.slow
def test_two_dists_with_one_name_both_work_in_full_and_the_short_one_names_both(site: Site) -> None:
    site.install("acme-ppo", GOOD.format(name="best"))
    site.install("zeta-ppo", GOOD.format(name="best"), version="2.0")
    plugins = site.plugins()
    assert state_of(plugins["acme-ppo"]) == (
        "conflict",
        "zeta-ppo 2.0 also registers trainer 'best': use 'acme-ppo:best'",
    )
    assert plugins["zeta-ppo"]["state"] == "conflict"
    code = (
        "from rlcore.plugins.registry import registries; t = registries().trainers\n"
        "print(t.get('acme-ppo:best').qualified, t.get('Zeta_PPO:best').qualified)\n"
        "try: t.get('best')\nexcept LookupError as error: print(type(error).__name__, error)"
    )
    assert site.python("-c", code).stdout.splitlines() == [
        "acme-ppo:best zeta-ppo:best",
        (
            "AmbiguousComponent 2 trainers are called 'best': "
            "use 'acme-ppo:best' (acme-ppo 0.3) or 'zeta-ppo:best' (zeta-ppo 2.0)"
        ),
    ]
    shown = site.python("-m", "rlcore", "show", "trainer").stderr
    assert "rlcore show acme-ppo:best, rlcore show zeta-ppo:best" in shown


def test_a_package_that_registers_the_name_of_a_default_changes_no_default(site: Site) -> None:
    hook = "@hookimpl\ndef register_{}(register):\n    register('{}', 'json:dumps')\n"
    hooks = hook.format("loggers", "console") + hook.format("rollout_stores", "memory")
    site.install("acme", f"from rlcore import hookimpl\n{hooks}")
    code = (
        "from rlcore.plugins.registry import registries; from rlcore.settings import TrainConfig\n"
        "known, config = registries(), TrainConfig()\nprint(known.loggers.get(*config.loggers).dist,"
        "known.rollout_stores.get(config.store).dist, len(known.loggers.matches('console')))"
    )
    assert site.python("-c", code).stdout == "rlcore rlcore 2\n"


def test_two_entry_points_of_one_dist_cannot_take_one_name(site: Site) -> None:
    (site.folder / "one.py").write_text(GOOD.format(name="x"))
    (site.folder / "two.py").write_text(GOOD.format(name="x"))
    site.install("acme", entry_points="[rlcore]\na = one\nb = two\nc = one\n")
    document = json.loads(site.python("-m", "rlcore", "list-plugins", "--json").stdout)
    states = {each["entry_point"]: state_of(each) for each in document["plugins"] if each["dist"] == "acme"}
    assert states == {
        "a": ("ok", ""),
        "b": ("conflict", "the entry point 'a' of acme 0.3 already registers trainer 'x'"),
        "c": ("conflict", "one is already loaded, for acme:a"),
    }


def test_a_dist_found_twice_counts_once_as_the_first(site: Site, tmp_path: Path) -> None:
    second = tmp_path / "second"
    site.install("acme", GOOD.format(name="x"), version="2.0")
    site.install("acme", GOOD.format(name="y"), version="1.0", folder=second)
    plugins = site.plugins(path=(second, site.folder))
    assert state_of(plugins["acme"]) == ("ok", "")
    assert (plugins["acme"]["version"], plugins["acme"]["components"]) == ("2.0", {"trainers": ["x"]})
    assert site.notes == [f"acme is installed 2 times: 2.0 in {site.folder} is used, 1.0 in {second} is not"]


def test_a_folder_that_the_path_holds_twice_is_no_second_place(site: Site, tmp_path: Path) -> None:
    site.install("acme", GOOD.format(name="x"))
    (tmp_path / "link").symlink_to(site.folder)
    assert site.plugins(path=(site.folder, tmp_path / "link"))["acme"]["state"] == "ok"
    assert site.notes == []


@pytest.mark.slow
def test_the_metadata_beside_the_code_of_an_editable_install_is_no_second_one(site: Site, tmp_path: Path) -> None:
    code = tmp_path / "my code"
    site.install("acme", GOOD.format(name="x"))
    info = code / "src" / "acme.egg-info"
    info.mkdir(parents=True)
    (info / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 0.3\n")
    (info / "entry_points.txt").write_text("[rlcore]\nmain = acme_plugin\n")
    record = {"url": code.as_uri(), "dir_info": {"editable": True}}
    direct = site.folder / "acme-0.3.dist-info" / "direct_url.json"
    for path, editable in ((code / "src", True), (code / "src", False)):
        direct.write_text(json.dumps(record | {"dir_info": {"editable": editable}}))
        assert site.plugins(path=(path,))["acme"]["state"] == "ok"
        assert bool(site.notes) is not editable
    direct.write_text("{")
    assert site.plugins()["acme"]["state"] == "ok"


def test_an_old_dist_hidden_by_a_newer_one_without_plugins_is_not_listed(site: Site, tmp_path: Path) -> None:
    second = tmp_path / "second"
    site.install("acme", version="2.0", entry_points="[console_scripts]\na = b:c\n")
    site.install("acme", GOOD.format(name="y"), version="1.0", folder=second)
    assert "acme" not in site.plugins(path=(second,))
    assert site.notes == [f"acme is installed 2 times: 2.0 in {site.folder} is used, 1.0 in {second} is not"]


@pytest.mark.slow
def test_nothing_loads_from_the_working_folder(site: Site) -> None:
    site.install("local", GOOD.format(name="x"), folder=site.elsewhere)
    assert "local" not in site.plugins(cwd=site.elsewhere)
    assert "local" in site.plugins(cwd=site.elsewhere, path=(site.elsewhere,))


@pytest.mark.slow
def test_disabled_plugins_are_not_imported(site: Site) -> None:
    site.install("Acme.DPO", "raise SystemExit\n", entry_points="[rlcore]\ndpo = acme_dpo_plugin\n")
    for name in ("acme-dpo", "Acme_DPO", "dpo", " x , dpo "):
        plugins = site.plugins(RLCORE_DISABLE_PLUGINS=name)
        assert state_of(plugins["acme-dpo"]) == ("disabled", "RLCORE_DISABLE_PLUGINS names it")
    assert site.plugins()["acme-dpo"]["state"] == "broken"


def test_the_allow_list_leaves_the_rest_out_and_empty_leaves_all_out_but_the_core(site: Site) -> None:
    site.install("one", GOOD.format(name="x"))
    site.install("two", GOOD.format(name="y"))
    plugins = site.plugins(RLCORE_PLUGINS="one")
    assert plugins["one"]["state"] == "ok"
    assert state_of(plugins["two"]) == ("disabled", "RLCORE_PLUGINS does not name it")
    plugins = site.plugins(RLCORE_PLUGINS="", RLCORE_DISABLE_PLUGINS="rlcore,core")
    assert [plugin["state"] for plugin in plugins.values()] == ["ok", "disabled", "disabled"]
    assert next(iter(plugins)) == "rlcore"


def test_a_switch_that_names_nothing_installed_is_remarked_on(site: Site) -> None:
    site.install("acme-dpo", GOOD.format(name="dpo"))
    done = site.python("-m", "rlcore", "list-plugins", RLCORE_DISABLE_PLUGINS="acme-dop")
    assert "note: RLCORE_DISABLE_PLUGINS names 'acme-dop', which is not installed; 'acme-dpo' is" in done.stdout


@pytest.mark.slow
def test_strict_mode_raises_for_a_broken_plugin_but_the_list_is_still_shown(site: Site) -> None:
    site.install("acme", "raise ValueError('no')\n")
    code = "from rlcore.plugins.registry import registries; registries()"
    assert site.python("-c", code).returncode == 0
    done = site.python("-c", code, RLCORE_STRICT_PLUGINS="1")
    assert done.returncode == 1
    assert "ValueError: no" in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.endswith("PluginError: RLCORE_STRICT_PLUGINS is set, and acme 0.3 is broken: ValueError: no")
    assert site.plugins(RLCORE_STRICT_PLUGINS="1")["acme"]["state"] == "broken"


def test_strict_mode_lists_all_plugins_that_are_neither_ok_nor_disabled(site: Site) -> None:
    site.install("acme", "raise ValueError('no')\n")
    site.install("beta", GOOD.format(name="x"))
    code = "from rlcore.plugins.registry import registries; registries()"
    done = site.python("-c", code, RLCORE_STRICT_PLUGINS="1", RLCORE_DISABLE_PLUGINS="beta,gamma")
    assert done.returncode == 1
    assert done.stderr.endswith(
        "PluginError: RLCORE_STRICT_PLUGINS is set\n"
        "  and acme 0.3 is broken: ValueError: no\n"
        "  and RLCORE_DISABLE_PLUGINS names 'gamma', which is not installed\n"
    )


def test_an_interrupt_while_plugins_load_ends_the_command(site: Site) -> None:
    site.install("acme", "raise KeyboardInterrupt\n")
    done = site.python("-m", "rlcore", "list-plugins")
    assert (done.returncode, done.stderr) == (130, "rlcore: interrupted\n")


def test_tracing_logs_every_loaded_plugin_and_every_hook_call(site: Site) -> None:
    site.install("acme", GOOD.format(name="x"))
    done = site.python("-m", "rlcore", "list-plugins", RLCORE_TRACE_PLUGINS="1")
    assert "rlcore: register_trainers: acme:main\n" in done.stderr
    assert "rlcore: acme 0.3: acme_plugin: ok in " in done.stderr


def test_each_process_loads_once_and_a_forked_one_for_itself(site: Site) -> None:
    site.install("acme", GOOD.format(name="x"))
    code = (
        "import os, sys; from rlcore.plugins.registry import registries; first = registries()\n"
        "assert registries() is first\n"
        "child = os.fork()\n"
        "if not child: os._exit(registries() is first)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    done = site.python("-c", code)
    assert done.returncode == 0, done.stderr


def test_the_core_is_registered_even_without_metadata() -> None:
    from rlcore.plugins.metadata import find_plugins

    assert [(found.dist, found.module) for found in find_plugins([]).plugins] == [("rlcore", "rlcore.plugins.builtin")]
