"""Tests that a component which has moved to another dist is found by its former full name."""

from __future__ import annotations

import pytest

from rlcore import hookspecs, protocols
from rlcore.components import Component, check_component
from rlcore.errors import PluginError, UnknownComponent
from rlcore.plugins.registry import Registry, registries


def sampler(name: str, dist: str, **facts: object) -> Component[object]:
    return Component("samplers", name, dist, "0.1", "", "acme:build", None, facts=facts)


MOVED = sampler("tree", "acme-trees", formerly="acme:tree")


def test_a_former_full_name_finds_the_component() -> None:
    registry = Registry("samplers", [MOVED, sampler("tree", "other")], ())
    assert registry.get("acme:tree") is MOVED
    assert registry.get("Acme:tree") is MOVED
    with pytest.raises(UnknownComponent):
        registry.get("acme:trees")


def test_a_component_of_that_dist_itself_is_found_before_one_that_has_moved() -> None:
    own = sampler("tree", "acme")
    assert Registry("samplers", [MOVED, own], ()).get("acme:tree") is own


def test_records_of_runs_keep_the_former_name() -> None:
    assert MOVED.lasting_name == "acme:tree"
    assert sampler("tree", "other").lasting_name == "other:tree"
    assert registries().samplers.get("default").lasting_name == "rlcore:default"


@pytest.mark.parametrize("formerly", ["tree", ":tree", "acme:", 3])
def test_a_former_name_that_is_not_a_full_name_is_refused(formerly: object) -> None:
    with pytest.raises(PluginError, match=r"formerly is .*; it must be the full name"):
        check_component(sampler("tree", "acme-trees", formerly=formerly))


@pytest.mark.parametrize("name", ["ParallelFiles", "StagedFiles", "Uploader"])
def test_a_protocol_that_was_beside_the_hooks_is_found_with_a_warning(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"rlcore\.hookspecs\.{name} is now rlcore\.protocols\.{name}"):
        assert getattr(hookspecs, name) is getattr(protocols, name)
