"""Tests of component wrappers: their nesting order, and that a failing wrapper changes nothing."""

from __future__ import annotations

import inspect
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pluggy
import pytest
from dists import Site

from rlcore import hookimpl, hookspecs
from rlcore.components import Component
from rlcore.errors import PluginError
from rlcore.plugins.choice import METHODS, Wrapping, layers_of
from rlcore.plugins.observers import Fence
from rlcore.protocols import Logger, Policy, RolloutStore, Trainer
from rlcore.settings import TrainConfig
from rlcore.training.rollout import MemoryStore

Python = Callable[..., subprocess.CompletedProcess[str]]
SAMPLER: Component[Any] = Component("samplers", "fast", "acme", "0.3", "", "acme:sample", None)
REWARD: Component[Any] = Component("rewards", "kind", "acme", "0.3", "", "acme:kind", None)


class Wrapper:
    """Plugin that returns a given wrapper, and records the components it was called with."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[str] = []

    @hookimpl
    def wrap_component(self, component: Component[Any]) -> Any:
        self.asked.append(component.qualified)
        return self.answer(component) if isinstance(self.answer, Answer) else self.answer


class Answer:
    """Function that returns a wrapper for one kind of component, and None for others."""

    def __init__(self, kind: str, wrap: Any) -> None:
        self.kind, self.wrap = kind, wrap

    def __call__(self, component: Component[Any]) -> Any:
        return self.wrap if component.kind == self.kind else None


class Raising:
    @hookimpl
    def wrap_component(self, component: Component[Any]) -> Any:
        raise SystemExit(f"no {component.name}")


def around(label: str) -> Callable[[Any], Any]:
    return lambda built: f"{label}({built})"


def make(**plugins: Any) -> tuple[Wrapping, Fence]:
    hooks = pluggy.PluginManager(hookspecs.PROJECT)
    hooks.add_hookspecs(hookspecs)
    for name, plugin in plugins.items():
        hooks.register(plugin, name=f"{name}:main")
    fence = Fence()
    return Wrapping(hooks, fence), fence


def test_a_component_that_no_plugin_wraps_is_used_itself() -> None:
    wrapping, fence = make(listener=object())
    built = object()
    assert wrapping.wrap(SAMPLER, built) is built
    assert (wrapping.plugins, fence.dropped) == (set(), [])


def test_the_wrapper_that_registered_first_is_innermost() -> None:
    wrapping, _ = make(a=Wrapper(around("a")), b=Wrapper(None), c=Wrapper(around("c")))
    assert wrapping.wrap(SAMPLER, "it") == "c(a(it))"
    assert wrapping.plugins == {"a:main", "c:main"}


def test_a_plugin_is_asked_once_about_a_component_however_often_that_builds() -> None:
    timer = Wrapper(Answer("samplers", around("t")))
    wrapping, _ = make(timer=timer)
    assert [wrapping.wrap(SAMPLER, name) for name in "xy"] == ["t(x)", "t(y)"]
    assert wrapping.wrap(REWARD, "z") == "z"
    assert timer.asked == ["acme:fast", "acme:kind"]


def test_a_plugin_may_ask_for_the_configuration_of_the_run() -> None:
    class Curious:
        asked: ClassVar[list[Any]] = []

        @hookimpl
        def wrap_component(self, config: Any) -> None:
            self.asked.append(config)

    hooks = pluggy.PluginManager(hookspecs.PROJECT)
    hooks.add_hookspecs(hookspecs)
    hooks.register(Curious())
    config = TrainConfig()
    Wrapping(hooks, config=config).layers(SAMPLER)
    layers_of(SAMPLER, hooks)
    assert Curious.asked == [config, None]


def fails(built: Any) -> Any:
    raise ValueError(f"not around {built}")


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (Raising(), "SystemExit: no fast"),
        (Wrapper(3), "TypeError: it returned 3; it must return a function, or None to leave it alone"),
        (Wrapper(fails), "ValueError: not around a(it)"),
        (Wrapper(lambda built: None), "TypeError: its function returned None; it must return a replacement"),
    ],
    ids=["hook raises", "no function", "function raises", "forgets to return"],
)
def test_a_wrapper_that_raises_is_logged_once_and_left_out_of_the_run(
    bad: Any, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wrapping, fence = make(a=Wrapper(around("a")), bad=bad, c=Wrapper(around("c")))
    assert wrapping.wrap(SAMPLER, "it") == "c(a(it))"
    assert wrapping.wrap(SAMPLER, "it") == "c(a(it))"
    assert wrapping.wrap(REWARD, "r") == "c(a(r))"
    (dropped,) = fence.dropped
    assert str(dropped).startswith(f"bad:main  wrap_component of sampler 'fast' at step 0: {error}")
    assert capsys.readouterr().err.count("wrapper_dropped") == 1
    assert wrapping.plugins == {"a:main", "c:main"}


def test_a_wrapper_of_a_function_must_be_callable() -> None:
    wrapping, fence = make(bad=Wrapper(lambda built: 3), good=Wrapper(lambda built: lambda: built() + 1))
    assert wrapping.wrap(SAMPLER, lambda: 41)() == 42
    said = "TypeError: its function returned 3, which has no __call__; it must return a replacement of its argument"
    assert [dropped.error for dropped in fence.dropped] == [said]


@pytest.mark.parametrize("bad", [Raising(), Wrapper(fails)], ids=["hook", "function"])
def test_a_wrapper_that_raises_ends_a_strict_run(bad: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLCORE_STRICT_PLUGINS", "1")
    wrapping, _ = make(bad=bad)
    with pytest.raises(PluginError, match=r"^bad:main: wrap_component of sampler 'fast' raised"):
        wrapping.wrap(SAMPLER, "it")


def test_an_interrupt_in_a_wrapper_ends_the_run() -> None:
    def interrupted(built: Any) -> Any:
        raise KeyboardInterrupt

    wrapping, _ = make(bad=Wrapper(interrupted))
    with pytest.raises(KeyboardInterrupt):
        wrapping.wrap(SAMPLER, "it")


WRAPPER = """
from rlcore import hookimpl

@hookimpl
def wrap_component(component):
    {body}
"""
IMPORTS_NOTHING = """
import sys
from rlcore.cli import main
code = main(sys.argv[1:])
heavy = sorted({"torch", "transformers", "rlcore_ppo.trainer"} & set(sys.modules))
sys.exit(f"imported {heavy}" if heavy else code)
"""


@pytest.fixture
def show(tmp_path: Path) -> Python:
    """Run `rlcore show` with three plugins: two that wrap trainers, one that raises for samplers."""
    bodies = {
        "acme-trace": "return print if component.kind == 'trainers' else None",
        "acme-timer": "return print if component.kind == 'trainers' else None",
        "acme-bad": "if component.kind == 'samplers': raise ValueError('no')",
    }
    site = Site(tmp_path)
    for dist, body in bodies.items():
        site.install(dist, WRAPPER.format(body=body))

    def run(*arguments: str, **switches: str) -> subprocess.CompletedProcess[str]:
        done = site.python("-c", IMPORTS_NOTHING, "show", *arguments, **switches)
        assert done.returncode == 0, done.stderr
        return done

    return run


@pytest.mark.slow
def test_the_chain_around_every_component_is_shown_innermost_first(show: Python) -> None:
    lines = show("--wrapped").stdout.splitlines()
    ppo = "trainer 'ppo' (rlcore-ppo 0.1.0)  <- acme-timer:main <- acme-trace:main"
    assert ppo in lines
    assert "rollout store 'memory' (rlcore 0.1.0)  not wrapped" in lines
    bad = "sampler 'default' (rlcore-transformers 0.1.0)  <- acme-bad:main (raises ValueError: no; runs skip it)"
    assert bad in lines
    assert show("--wrapped", "rlcore-ppo:ppo").stdout.splitlines() == [ppo]


def test_the_chain_of_wrappers_is_also_shown_as_json(show: Python) -> None:
    document = json.loads(show("--wrapped", "default", "--json").stdout)
    assert document["schema"] == 1
    assert document["wrapped"] == [
        {
            "name": "rlcore-transformers:default",
            "what": "sampler 'default' (rlcore-transformers 0.1.0)",
            "layers": [{"plugin": "acme-bad:main", "error": "ValueError: no"}],
        }
    ]


def test_showing_wrappers_states_if_nothing_is_wrapped(show: Python) -> None:
    without = {"RLCORE_PLUGINS": "rlcore-ppo,rlcore-tools"}
    assert show("--wrapped", **without).stdout == "no plugin wraps a component\n"
    assert show("--wrapped", "ppo", **without).stdout == "trainer 'ppo' (rlcore-ppo 0.1.0)  not wrapped\n"


def test_a_name_is_needed_unless_all_chains_are_shown(python: Python) -> None:
    assert python("-m", "rlcore", "show").returncode == 2
    unknown = python("-m", "rlcore", "show", "--wrapped", "poo")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert unknown.stderr.startswith("UnknownComponent: no section or component is called 'poo'. Did you mean 'ppo'?")


def test_a_wrapper_of_an_object_must_have_its_methods() -> None:
    store = Component("rollout_stores", "shelf", "acme", "1", "", MemoryStore, None)
    wrapping, fence = make(bad=Wrapper(lambda built: []), good=Wrapper(lambda built: built))
    built = MemoryStore()
    assert wrapping.wrap(store, built) is built
    said = "TypeError: its function returned [], which has no take; it must return a replacement of its argument"
    assert [dropped.error for dropped in fence.dropped] == [said]


@pytest.mark.parametrize(
    ("kind", "protocol"),
    [("trainers", Trainer), ("architectures", Policy), ("rollout_stores", RolloutStore), ("loggers", Logger)],
)
def test_the_methods_that_a_wrapper_must_have_are_those_of_the_protocol(kind: str, protocol: type) -> None:
    functions = [name for name, _ in inspect.getmembers(protocol, inspect.isfunction)]
    assert set(METHODS[kind]) == {name for name in functions if not name.startswith("_") or name == "__len__"}
