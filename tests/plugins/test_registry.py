"""Tests of registries: short and full names, suggestions for misspelt names, lazy targets."""

from __future__ import annotations

import collections
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pluggy
import pytest
from packaging.requirements import Requirement

from rlcore import errors
from rlcore.components import KINDS, Component
from rlcore.config import config, option
from rlcore.hookspecs import Order, Services
from rlcore.plugins.builtin import how_to_install, published
from rlcore.plugins.discovery import Discovery, Offer, Plugin, State, combine
from rlcore.plugins.registry import Registries, build_registries, registries

ROOT = Path(__file__).resolve().parents[2]
CLONE = "(in a clone of rlcore: pip install ./plugins/rlcore_transformers ./plugins/rlcore_reinforce)"


@config
class Options:
    clip: float = option(0.2, "a clip", ge=0)


def component(
    name: str, dist: str = "acme", kind: str = "trainers", target: Any = "json:dumps", config: Any = None
) -> Any:
    return Component(
        kind=kind, name=name, dist=dist, version="0.1.0", summary="", reference=target, config_reference=config
    )


def registries_of(*plugins: Plugin) -> Registries:
    return build_registries(Discovery(plugins, pluggy.PluginManager("rlcore"), ()))


def plugin(dist: str, *components: Component[Any], state: State = State.OK, reason: str = "") -> Plugin:
    return Plugin(dist, "0.1.0", "main", "m", state=state, reason=reason, components=components)


@pytest.fixture
def three() -> Registries:
    return registries_of(
        plugin("rlcore-sft", component("sft", "rlcore-sft")),
        plugin("rlcore-ppo", component("ppo", "rlcore-ppo")),
        plugin("acme-dpo", state=State.BROKEN, reason="ImportError: No module named 'acme'"),
        plugin("acme-old", state=State.INCOMPATIBLE, reason="needs rlcore>=9"),
    )


@pytest.mark.parametrize("name", ["ppo", "rlcore-ppo:ppo", "rlcore_ppo:ppo", "RLcore.ppo:ppo"])
def test_a_component_answers_to_its_short_and_its_full_name(three: Registries, name: str) -> None:
    assert three.trainers.get(name).qualified == "rlcore-ppo:ppo"
    assert name in three.trainers


def test_the_error_for_an_unknown_name_lists_near_installed_and_unloaded_ones(three: Registries) -> None:
    with pytest.raises(errors.UnknownTrainer) as caught:
        three.trainers.get("poo")
    assert str(caught.value) == (
        "no trainer is called 'poo'. Did you mean 'ppo' (rlcore-ppo 0.1.0)?\n"
        "  installed:  ppo (rlcore-ppo 0.1.0), sft (rlcore-sft 0.1.0)\n"
        "  not loaded: acme-dpo 0.1.0, ImportError: No module named 'acme'\n"
        "              acme-old 0.1.0, needs rlcore>=9\n  see:        rlcore list-plugins"
    )


def test_many_installed_names_are_listed_in_lines_that_break_between_them() -> None:
    trainers = [component(f"trainer{i}", "acme-trainers") for i in range(4)]
    with pytest.raises(errors.UnknownTrainer) as caught:
        registries_of(plugin("acme-trainers", *trainers)).trainers.get("xyz")
    assert str(caught.value).splitlines()[1:] == [
        "  installed:  trainer0 (acme-trainers 0.1.0), trainer1 (acme-trainers 0.1.0),",
        "              trainer2 (acme-trainers 0.1.0), trainer3 (acme-trainers 0.1.0)",
        "  see:        rlcore list-plugins",
    ]


def test_the_error_for_an_unknown_name_states_if_nothing_is_near_or_installed() -> None:
    with pytest.raises(errors.UnknownReward) as caught:
        registries_of().rewards.get("xyz")
    assert str(caught.value) == "no reward is called 'xyz'.\n  installed:  none\n  see:        rlcore list-plugins"


@pytest.mark.parametrize("name", ["reinforce", "rlcore-reinforce:reinforce", "RLcore.reinforce:reinforce"])
def test_the_error_for_a_published_name_names_the_package_to_install(three: Registries, name: str) -> None:
    with pytest.raises(errors.UnknownTrainer) as caught:
        three.trainers.get(name)
    first = str(caught.value).splitlines()[0]
    assert first.startswith(f"no trainer is called '{name}'.")
    source = "comes with rlcore-reinforce, which is not installed: pip install rlcore-reinforce " + CLONE
    assert first.endswith(f" '{name}' {source}")


def test_a_suggested_name_may_be_a_published_one() -> None:
    with pytest.raises(errors.UnknownLogger) as caught:
        registries_of().loggers.get("tensorbord")
    assert str(caught.value).splitlines()[0] == (
        "no logger is called 'tensorbord'. Did you mean 'tensorboard'? It comes with rlcore-loggers, which is not "
        "installed: pip install 'rlcore-loggers[tensorboard]' (in a clone of rlcore: pip install "
        "'./plugins/rlcore_loggers[tensorboard]')"
    )


def test_the_error_shows_both_an_installed_and_a_published_near_name() -> None:
    near = registries_of(plugin("acme", component("reinforced")))
    with pytest.raises(errors.UnknownTrainer) as caught:
        near.trainers.get("reinforce")
    assert str(caught.value).splitlines()[0] == (
        "no trainer is called 'reinforce'. Did you mean 'reinforced' (acme 0.1.0)? 'reinforce' comes with "
        "rlcore-reinforce, which is not installed: pip install rlcore-reinforce " + CLONE
    )


def test_an_installed_package_is_not_suggested_for_installation() -> None:
    off = registries_of(plugin("rlcore-ppo", state=State.DISABLED, reason="a switch"), plugin("rlcore-sft"))
    for name, said in {
        "ppo": "'ppo' comes with rlcore-ppo, which is installed, but disabled",
        "sft": "'sft' comes with other versions of rlcore-sft; 0.1.0 is installed",
    }.items():
        with pytest.raises(errors.UnknownTrainer) as caught:
            off.trainers.get(name)
        assert str(caught.value).splitlines()[0] == f"no trainer is called '{name}'. {said}"


def test_the_list_of_published_names_is_what_the_packages_register() -> None:
    here = {plugin.dist for plugin in registries().discovery.plugins} - {"rlcore"}
    for registry in registries():
        brought = {component.name: component.dist for component in registry if component.dist in here}
        listed = {name: one.dist for name, one in published(registry.kind).items() if one.dist in here}
        assert listed == brought, registry.kind


def test_the_folders_to_install_are_those_of_the_package_and_of_what_it_requires() -> None:
    dists = {one.dist for registry in registries_of() for one in published(registry.kind).values()}
    named = {dist: re.findall(r"\./(\w[\w/]*)", how_to_install(dist)) for dist in dists}
    assert {"rlcore-sft", "rlcore-dpo"} <= set(named)
    for dist, folders in named.items():
        read = [tomllib.loads((ROOT / each / "pyproject.toml").read_text(encoding="utf-8")) for each in folders]
        *required, name = (each["project"]["name"] for each in read)
        assert name == dist
        needed = [Requirement(each).name for each in read[-1]["project"]["dependencies"]]
        assert required == [each for each in needed if each.startswith("rlcore-")]


def test_the_published_default_inputs_of_a_trainer_are_those_of_its_class() -> None:
    for name, one in published("trainers").items():
        found = registries().trainers.get(f"{one.dist}:{name}").target()
        assert getattr(found, "default_for", ()) == one.default_for


@pytest.mark.parametrize("name", ["", ":", "ppo:ppo", "rlcore-sft:ppo", "rlcore-ppo:", None, 3])
def test_a_component_is_not_found_by_any_other_spelling(three: Registries, name: Any) -> None:
    assert name not in three.trainers
    with pytest.raises(errors.UnknownTrainer):
        three.trainers.get(name)


def test_each_kind_of_component_has_its_own_error_with_a_common_base() -> None:
    raised = set()
    for registry in registries_of():
        with pytest.raises(errors.UnknownComponent) as caught:
            registry.get("x")
        assert isinstance(caught.value, LookupError)
        raised.add(caught.type)
    assert len(raised) == len(KINDS) == 12


def test_components_of_one_name_in_two_dists_have_different_full_names() -> None:
    both = registries_of(plugin("a", component("x", "a")), plugin("b", component("x", "b")))
    assert both.trainers.get("b:x").dist == "b"
    assert "x" not in both.trainers
    with pytest.raises(errors.AmbiguousComponent, match=r"2 trainers are called 'x': use 'a:x' \(a 0.1.0\) or 'b:x'"):
        both.trainers.get("x")


def test_one_name_may_stand_in_several_registries() -> None:
    both = registries_of(plugin("a", component("x", "a"), component("x", "a", kind="loggers")))
    assert both.trainers.get("x").kind == "trainers"
    assert both.loggers.get("x").kind == "loggers"
    assert len(both.samplers) == 0


def test_a_registered_target_is_imported_only_on_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lazy_target.py").write_text("class Box:\n    inner = print\n")
    monkeypatch.syspath_prepend(tmp_path)
    lazy = component("x", target="lazy_target:Box.inner")
    assert "lazy_target" not in sys.modules
    assert lazy.target() is print
    monkeypatch.delitem(sys.modules, "lazy_target")


def test_a_registered_target_may_be_an_object() -> None:
    assert component("x", target=collections.Counter).target() is collections.Counter
    assert component("x", config=Options).config_class() is Options
    assert component("x").config_class() is None


@pytest.mark.parametrize(
    ("target", "cause"),
    [
        ("acme_absent.trainer:T", "ModuleNotFoundError: No module named 'acme_absent'"),
        ("json:dump_all", "AttributeError: module 'json' has no attribute 'dump_all'"),
        ("leaves:X", "SystemExit: 3"),
    ],
)
def test_a_target_that_does_not_import_names_plugin_target_and_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, cause: str
) -> None:
    (tmp_path / "leaves.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(errors.PluginError) as caught:
        component("x", target=target).target()
    assert str(caught.value) == f"trainer 'x' (acme 0.1.0): cannot load its target '{target}': {cause}"
    assert caught.value.__cause__ is not None


def test_a_config_that_is_no_config_class_is_refused() -> None:
    with pytest.raises(errors.PluginError, match="its config 'json:dumps' is not a class made with"):
        component("x", config="json:dumps").config_class()


def test_everything_the_installed_plugins_register_can_be_imported() -> None:
    for registry in registries():
        for each in registry:
            if each.dist in {"rlcore", "rlcore-ppo", "rlcore-sft"}:
                assert callable(each.target()), each
                each.config_class()


def plugin_with(name: str, order: Order, services: Services) -> Plugin:
    return Plugin("acme", "0.1.0", name, f"{name}:plugin", State.OK, offers=(Offer(services, (), order),))


def test_services_are_asked_in_their_order_until_one_has_a_result() -> None:
    asked: list[str] = []

    def answer(name: str, result: float | None) -> Services:
        def learning_rate(*_: object) -> float | None:
            asked.append(name)
            return result

        return Services(learning_rate=learning_rate)

    plugins = [
        plugin_with("late", "last", answer("late", 4.0)), plugin_with("later", "last", answer("later", 5.0)),
        plugin_with("early", "first", answer("early", None)), plugin_with("plain", "", answer("plain", None)),
        plugin_with("newer", "", answer("newer", None)), plugin_with("earlier", "first", answer("earlier", None)),
    ]  # fmt: skip
    learning_rate: Any = combine(plugins).learning_rate
    assert learning_rate(None, None) == 4.0
    assert asked == ["earlier", "early", "newer", "plain", "late"]
    assert combine(plugins).uploader() is None


def test_an_error_of_a_service_names_its_plugin_unless_it_is_a_message_for_the_user() -> None:
    def fail(error: Exception) -> Any:
        def uploader() -> None:
            raise error

        return combine([plugin_with("hub", "", Services(uploader=uploader))]).uploader

    with pytest.raises(errors.PluginError, match=r"^acme:hub: uploader raised KeyError: 'token'$"):
        fail(KeyError("token"))()
    with pytest.raises(errors.ConfigError, match=r"^no such repository$"):
        fail(errors.ConfigError("no such repository"))()
