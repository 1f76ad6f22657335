"""Tests of the names by which a run finds the strategies, and of the error where the package is missing."""

from __future__ import annotations

import pytest

from rlcore.errors import UnknownCommand, UnknownSharding
from rlcore.plugins.builtin import published
from rlcore.plugins.registry import Registry, registries

STRATEGIES = ["fsdp", "tp", "zero2", "zero3"]


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_is_found_by_its_short_name_and_its_full_name(name: str) -> None:
    shardings = registries().shardings
    full = f"rlcore-shard:{name}"
    assert {shardings.get(each).qualified for each in (name, full)} == {full}


@pytest.mark.parametrize("name", STRATEGIES)
def test_naming_a_strategy_of_a_missing_package_is_an_error_with_the_command_to_install_it(name: str) -> None:
    without = [each for each in registries().shardings if each.dist != "rlcore-shard"]
    with pytest.raises(UnknownSharding, match=rf"'{name}' comes with rlcore-shard, .* pip install rlcore-shard"):
        Registry("shardings", without, ()).get(name)


def test_the_command_export_without_the_package_names_it_too() -> None:
    with pytest.raises(UnknownCommand, match=r"'export' comes with rlcore-shard, .* pip install rlcore-shard"):
        Registry("commands", [], ()).get("export")


def test_the_published_table_names_what_the_package_registers() -> None:
    own = [each.name for each in registries().shardings if each.dist == "rlcore-shard"]
    assert own == STRATEGIES == [name for name, one in published("shardings").items() if one.dist == "rlcore-shard"]
