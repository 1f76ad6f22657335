"""Tests of deprecated hooks and arguments: a warning for two minor versions, then an error that names the plugin."""

from __future__ import annotations

import json
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
from dists import GOOD, Site

from rlcore import hookspecs
from rlcore.cli.list_plugins import plugins_as_json, print_plugins
from rlcore.hookspecs import deprecated, hookspec
from rlcore.plugins.discovery import Discovery, discover

SOURCE = """
from rlcore import hookimpl

@hookimpl
def on_x({arguments}): ...

@hookimpl
def on_old(): ...
"""


def specs(*, takes_y: bool = True) -> Any:
    """Return hook specs like the core's, with a deprecated hook and a hook with a deprecated or removed argument y."""
    made = types.ModuleType("specs")
    vars(made).update(vars(hookspecs))
    y = deprecated("on_x", "y", since="0.3", goes="0.5", use="z")

    def on_x(y: int, z: int) -> None: ...
    def on_x_later(z: int) -> None: ...
    def on_old() -> None: ...

    on_x_later.__name__ = "on_x"
    made.on_x = hookspec(warn_on_impl_args={"y": y})(on_x) if takes_y else hookspec(on_x_later)  # type: ignore[attr-defined]
    old = deprecated("on_old", since="0.3", goes="0.5", use="on_x")
    made.on_old = hookspec(warn_on_impl=old)(on_old)  # type: ignore[attr-defined]
    return made


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path)
    monkeypatch.syspath_prepend(made.folder)
    return made


def find(site: Site, **options: Any) -> Discovery:
    return discover({}, [str(site.folder)], specs(**options))


def test_every_deprecation_has_the_same_form() -> None:
    assert str(deprecated("on_x", "y", since="0.3", goes="0.5", use="z")) == (
        "hook on_x: argument 'y' is deprecated since rlcore 0.3 and will be removed in 0.5: use 'z'"
    )
    assert str(deprecated("on_old", since="0.3", goes="0.5", use="on_x")) == (
        "hook on_old is deprecated since rlcore 0.3 and will be removed in 0.5: use 'on_x'"
    )


def test_a_deprecated_hook_argument_causes_a_warning_and_works_until_it_is_removed(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.install("acme-y", SOURCE.format(arguments="y"))
    site.install("acme-z", GOOD.format(name="z") + "@hookimpl\ndef on_x(z): ...\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # they are logged as warnings, whatever the program's warning filters
        found = find(site)
    y, z = found.plugins[1:]
    remarks = (
        "hook on_x: argument 'y' is deprecated since rlcore 0.3 and will be removed in 0.5: use 'z'",
        "hook on_old is deprecated since rlcore 0.3 and will be removed in 0.5: use 'on_x'",
    )
    assert (y.state, y.reason, set(y.remarks)) == ("ok", "", set(remarks))
    assert (z.state, z.remarks) == ("ok", ())
    assert found.complaints == []
    print_plugins(found)
    shown = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert {f"remark: {remark}" for remark in remarks} <= set(shown)
    listed = json.loads(plugins_as_json(found))["plugins"]
    assert [set(plugin["remarks"]) for plugin in listed[1:]] == [set(remarks), set()]


def test_a_removed_hook_argument_breaks_the_plugin_and_the_error_lists_the_arguments(site: Site) -> None:
    site.install("acme-gone", SOURCE.format(arguments="y, z"))
    gone = find(site, takes_y=False).plugins[1]
    assert (gone.state, gone.reason) == ("broken", "hook on_x has no argument 'y'; it takes z")


def test_a_warning_of_a_plugin_does_not_count_as_a_remark_of_rlcore(site: Site) -> None:
    site.install(
        "acme-warns", GOOD.format(name="w") + "    import warnings; warnings.warn('mine', DeprecationWarning)\n"
    )
    with pytest.warns(DeprecationWarning, match="mine"):
        found = find(site)
    assert (found.plugins[1].state, found.plugins[1].remarks) == ("ok", ())
