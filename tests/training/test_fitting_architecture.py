"""Tests of the architecture of a run in which the user names none: each states how well it fits the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rlcore.components import Component, check_component
from rlcore.errors import InputsError, PluginError
from rlcore.plugins.registry import Registry
from rlcore.training.run_components import fitting_architecture


def architecture(name: str, dist: str = "acme", **facts: Any) -> Component[Any]:
    return Component("architectures", name, dist, "1", "", print, None, facts)


def fits(number: int) -> Callable[[Any, str | None], int]:
    return lambda spec, revision: number * (spec == "model") * (revision == "main")


def chosen(*architectures: Component[Any]) -> str:
    return fitting_architecture(Registry("architectures", architectures, []), "model", "main").qualified


def test_the_architecture_that_fits_best_is_chosen_whatever_its_package_and_name() -> None:
    anything, made_for = architecture("any", "rlcore", fits=fits(1)), architecture("zebra", fits=fits(3))
    assert chosen(anything, made_for, architecture("middle", fits=fits(2)), architecture("silent")) == "acme:zebra"


def test_the_first_by_name_is_chosen_of_architectures_that_fit_equally_well() -> None:
    assert chosen(architecture("b", fits=fits(2)), architecture("a", fits=fits(2))) == "acme:a"


@pytest.mark.parametrize("architectures", [[], [architecture("silent")], [architecture("other", fits=fits(0))]])
def test_a_model_that_fits_no_architecture_is_an_error_that_asks_for_a_name(
    architectures: list[Component[Any]],
) -> None:
    with pytest.raises(
        InputsError, match=r"model = 'model': no installed architecture takes it .* model\.architecture"
    ):
        chosen(*architectures)


def test_an_error_in_fits_names_the_plugin() -> None:
    with pytest.raises(PluginError, match=r"architecture 'a' \(acme 1\): its function 'fits' raised ZeroDivisionError"):
        chosen(architecture("a", fits=lambda *_: 1 // 0))


@pytest.mark.parametrize(
    ("kind", "facts", "problem"),
    [
        ("architectures", {"fits": 3}, "fits is 3; it must be callable"),
        ("architectures", {"sections": ["tokenizer"]}, "it must map names to config classes"),
        ("architectures", {"sections": {"tokenizer": "no reference"}}, "it must map names to config classes"),
        ("samplers", {"fits": print}, "'fits' is no argument of the registration of samplers"),
    ],
)
def test_a_registration_with_a_wrong_fact_is_refused(kind: str, facts: dict[str, Any], problem: str) -> None:
    with pytest.raises(PluginError, match=problem):
        check_component(Component(kind, "x", "acme", "1", "", print, None, facts))
