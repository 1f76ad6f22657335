"""A plugin's command is listed, parsed and run as one of the core's, and no plugin can hide or replace another's."""

from __future__ import annotations

from pathlib import Path

import pytest
from depths import by_day
from dists import GOOD, Site

from rlcore.plugins.builtin import COMMANDS

HOOK = "from rlcore import hookimpl\n\n@hookimpl\ndef register_commands(register):\n"
REPORT = """
from rlcore.errors import DataError

def report(parser):
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("overrides", nargs="*", default=[])
    parser.add_argument("--top", type=int, default=3)
    parser.add_argument("--json", action="store_true")

    def run(arguments):
        if arguments.top < 0:
            parser.error("argument --top: must not be negative")
        if arguments.run == "absent":
            raise DataError("absent: no such run")
        print(arguments.run, arguments.top, arguments.json, *arguments.overrides)
        return 5 if arguments.run == "empty" else 0

    return run
"""
CORE = [name for name, _, _ in COMMANDS]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def registered(name: str, target: str, more: str = "") -> str:
    return f"{HOOK}    register({name!r}, {target!r}{more})\n"


@pytest.fixture
def reporting(site: Site) -> Site:
    site.install("acme", registered("tabulate", "acme_report:report", ", summary='tabulate 100 % of a run'"))
    (site.folder / "acme_report.py").write_text(REPORT)
    return site


@pytest.mark.parametrize(
    ("words", "code", "printed", "complaint"),
    [
        (["tabulate", "mine", "--top", "2", "a=1", "--json", "b=2"], 0, "mine 2 True a=1 b=2\n", ""),
        (["acme:tabulate", "mine"], 0, "mine 3 False\n", ""),
        (["tabulate", "empty"], 5, "empty 3 False\n", ""),
        (["tabulate", "absent"], 1, "", "DataError: absent: no such run"),
        (["tabulate"], 2, "", "rlcore tabulate: error: the following arguments are required: RUN"),
        (["tabulate", "mine", "--top", "-1"], 2, "", "rlcore tabulate: error: argument --top: must not be negative"),
        (["tabulate", "mine", "--tpo"], 2, "", "rlcore: error: unrecognized arguments: --tpo"),
        (["tabluate"], 2, "", "rlcore: error: no command is called 'tabluate'. Did you mean 'tabulate' (acme 0.3)?"),
    ],
)
def test_a_command_of_a_plugin_runs_like_one_of_the_core(
    words: list[str], code: int, printed: str, complaint: str, reporting: Site
) -> None:
    done = reporting.python("-m", "rlcore", *words)
    assert (done.returncode, done.stdout) == (code, printed)
    assert done.stderr.splitlines()[-1:] == [complaint] * bool(complaint)
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_help_lists_a_command_of_a_plugin_with_its_arguments(reporting: Site) -> None:
    listed = reporting.python("-m", "rlcore", "--commands").stdout
    assert all(f"\n    {each}" in listed for each in (*CORE, "tabulate"))
    assert "tabulate 100 % of a run (acme 0.3)" in listed
    own = reporting.python("-m", "rlcore", "tabulate", "--help").stdout
    assert own.startswith("usage: rlcore tabulate [-h] [--top TOP] [--json] RUN")
    assert "Tabulate 100 % of a run." in own
    shown = reporting.python("-m", "rlcore", "show", "tabulate").stdout.splitlines()
    assert shown[1] == "rlcore tabulate --help prints its arguments"


@pytest.mark.slow
def test_plugins_are_loaded_only_where_the_core_has_no_such_command(reporting: Site) -> None:
    code = (
        "import sys\nfrom rlcore.cli import main\n"
        "try: main({words!r})\nexcept SystemExit: pass\n"
        "print(*({{'acme_plugin', 'acme_report'}} & set(sys.modules)))"
    )
    for words, imported in (
        (["--version"], set()),
        (["list-plugins", "--help"], set()),
        (["train"], set()),
        (["--help"], set()),
        (["--commands"], {"acme_plugin"}),
        (["tabulate", "--help"], {"acme_plugin", "acme_report"}),
    ):
        done = reporting.python("-c", code.format(words=words))
        assert set(done.stdout.splitlines()[-1].split()) == imported, words


BROKEN = {
    "module missing": ("", "cannot load its target 'acme_report:report': ModuleNotFoundError"),
    "module raises": ("raise OSError('no')", "cannot load its target 'acme_report:report': OSError: no"),
    "no such function": ("x = 1", "cannot load its target 'acme_report:report': AttributeError"),
    "raises": ("def report(parser): 1 / 0", "cannot add its arguments: ZeroDivisionError: division by zero"),
    "exits": ("def report(parser): raise SystemExit(3)", "cannot add its arguments: SystemExit: 3"),
    "takes no parser": ("def report(): pass", "cannot add its arguments: TypeError: report() takes 0"),
    "adds one argument twice": (
        "def report(parser): [parser.add_argument('--a') for _ in range(2)]", "cannot add its arguments: ArgumentError"
    ),
    "returns nothing": ("def report(parser): pass", "its target returned None; it must return the function"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", by_day(BROKEN, ["module missing", "raises", "returns nothing"]))
def test_a_broken_command_is_an_error_of_one_line_and_hides_no_other(name: str, site: Site) -> None:
    source, said = BROKEN[name]
    site.install("acme", registered("tabulate", "acme_report:report"))
    site.install("beta", registered("works", "beta_work:work"))
    (site.folder / "beta_work.py").write_text("def work(parser):\n    return lambda arguments: 0\n")
    if source:
        (site.folder / "acme_report.py").write_text(source + "\n")
    done = site.python("-m", "rlcore", "tabulate")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"PluginError: command 'tabulate' (acme 0.3): {said}")
    assert site.python("-m", "rlcore", "works").returncode == 0
    listed = site.python("-m", "rlcore", "--commands").stdout
    assert all(f"\n    {name}" in listed for name in (*CORE, "tabulate", "works"))


def test_a_command_that_returns_no_exit_code_is_an_error(site: Site) -> None:
    site.install("acme", registered("tabulate", "acme_report:report"))
    (site.folder / "acme_report.py").write_text("def report(parser):\n    return lambda arguments: 'done'\n")
    done = site.python("-m", "rlcore", "tabulate")
    assert (done.returncode, done.stderr) == (
        1, "PluginError: the command returned 'done'; it must return an exit code, 0 for success\n",
    )  # fmt: skip


def test_text_printed_while_a_command_is_imported_is_not_part_of_its_output(site: Site) -> None:
    site.install("acme", registered("tabulate", "acme_report:report"))
    (site.folder / "acme_report.py").write_text(
        "print('loaded')\ndef report(parser):\n    print('added')\n    return lambda arguments: print('ran') or 0\n"
    )
    done = site.python("-m", "rlcore", "tabulate")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "loaded\nadded\n")


@pytest.mark.slow
@pytest.mark.parametrize("name", CORE)
def test_no_plugin_replaces_a_command_of_the_core(name: str, site: Site) -> None:
    site.install("acme", registered(name, "acme_report:report"))
    (site.folder / "acme_report.py").write_text(
        "def report(parser):\n    return lambda arguments: print('mine') or 0\n"
    )
    plugins = site.plugins()
    assert (plugins["acme"]["state"], plugins["acme"]["reason"]) == (
        "conflict", f"rlcore 0.1.0 also registers command '{name}': use 'acme:{name}'",
    )  # fmt: skip
    assert plugins["rlcore"]["state"] == "ok"
    assert site.python("-m", "rlcore", name, "--help").stdout.startswith(f"usage: rlcore {name} [-h]")
    assert site.python("-m", "rlcore", f"acme:{name}").stdout == "mine\n"
    listed = site.python("-m", "rlcore", "--commands").stdout
    assert f"\n    {name}" in listed
    assert f"\n    acme:{name}" in listed


@pytest.mark.slow
def test_a_command_name_of_two_plugins_runs_by_its_full_names_only(site: Site) -> None:
    for dist in ("acme", "beta"):
        site.install(dist, registered("tabulate", f"{dist}_plugin:report") + (
            f"\ndef report(parser):\n    return lambda arguments: print('{dist}') or 0\n"
        ))  # fmt: skip
    plugins = site.plugins()
    assert [plugins[dist]["state"] for dist in ("acme", "beta")] == ["conflict", "conflict"]
    assert plugins["acme"]["reason"] == "beta 0.3 also registers command 'tabulate': use 'acme:tabulate'"
    done = site.python("-m", "rlcore", "tabulate")
    assert (done.returncode, done.stdout) == (2, "")
    said = "2 commands are called 'tabulate': use 'acme:tabulate' (acme 0.3) or 'beta:tabulate' (beta 0.3)"
    assert done.stderr.splitlines()[-1] == f"rlcore: error: {said}"
    assert site.python("-m", "rlcore", "beta:tabulate").stdout == "beta\n"
    listed = site.python("-m", "rlcore", "--commands").stdout
    assert "\n    acme:tabulate" in listed
    assert "\n    beta:tabulate" in listed


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (HOOK + "    register('tabulate', 'acme_report:report', config=int)\n",
         "command 'tabulate': config is <class 'int'>; it must be a config class, 'module:attribute' or None"),
        (HOOK + "    register('tabulate', 'acme_report:report', config='a:B')\n",
         "command 'tabulate': config is 'a:B'; a command has none: its target adds arguments to a parser"),
        (HOOK + "    register('--tabulate', 'acme_report:report')\n",
         "command '--tabulate': a name consists of letters, digits, '-', '_' and '.', such as 'my-algo'"),
        (HOOK + "    register('tabulate', 'acme:x')\n    register('tabulate', 'acme:x')\n",
         "it registers command 'tabulate' twice"),
        (HOOK + "    raise OSError('no')\n", "OSError: no"),
    ],
    ids=["config of no class", "config", "name", "twice", "raises"],
)  # fmt: skip
def test_an_unusable_registration_of_a_command_breaks_only_its_plugin(source: str, reason: str, site: Site) -> None:
    site.install("acme", source)
    site.install("beta", GOOD.format(name="good"))
    plugins = site.plugins()
    assert (plugins["acme"]["state"], plugins["acme"]["reason"]) == ("broken", reason)
    assert plugins["beta"]["state"] == "ok"
    done = site.python("-m", "rlcore", "tabulate")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "rlcore: error: no command is called 'tabulate'. Not loaded: acme 0.3; see rlcore list-plugins."
    )


def test_commands_are_never_wrapped(reporting: Site) -> None:
    reporting.install(
        "beta", "from rlcore import hookimpl\n@hookimpl\ndef wrap_component(component): return lambda x: x\n"
    )
    assert "command" not in reporting.python("-m", "rlcore", "show", "--wrapped").stdout


def test_a_command_of_a_published_plugin_that_takes_no_part_names_the_plugin(site: Site) -> None:
    done = site.python("-m", "rlcore", "plan", "run.yaml", RLCORE_DISABLE_PLUGINS="rlcore-tools")
    assert (done.returncode, done.stdout) == (2, "")
    said = "no command is called 'plan'. 'plan' comes with rlcore-tools, which is installed, but disabled"
    assert done.stderr.splitlines()[-1] == f"rlcore: error: {said}"


def test_a_command_that_is_not_installed_is_named_with_the_package_to_install(site: Site) -> None:
    code = "import sys; from rlcore.plugins import metadata; from rlcore.cli import main\n"
    code += "metadata.distributions = lambda **_: []; main([sys.argv[1]])"
    for command in ("doctor", "new-plugin"):
        done = site.python("-c", code, command)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.splitlines()[-1] == (
            f"rlcore: error: rlcore {command} is a command of rlcore-tools: pip install rlcore-tools "
            "(in a clone of rlcore: pip install ./plugins/rlcore_shard ./plugins/rlcore_transformers "
            "./plugins/rlcore_tools)"
        )


def test_the_short_command_of_a_trainer_that_takes_no_part_names_its_package(site: Site) -> None:
    done = site.python("-m", "rlcore", "rft", "--model", "m", RLCORE_DISABLE_PLUGINS="rlcore-rft")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].endswith("'rft' comes with rlcore-rft, which is installed, but disabled")
