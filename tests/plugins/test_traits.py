"""Tests of the optional members of components: a component that lacks one has the default."""

from __future__ import annotations

import pytest

from rlcore.components import LANGUAGE_MODEL, SCORER, Traits
from rlcore.protocols import ArchitectureTraits, EnvironmentTraits, SamplerTraits, TrainerTraits


class Given(Traits):
    """Members of three kinds."""

    number: int = 3

    def close(self) -> str:
        """Return the default."""
        return "default"

    @property
    def doubled(self) -> int:
        """Twice the number."""
        return 2 * self.number


class Own:
    """A component with members of its own, some of which have the names of members."""

    number = 5
    doubled = 7

    def close(self) -> str:
        """Return something else than the default."""
        return "own"


def test_a_component_without_members_has_the_defaults():
    for empty in (None, object(), len, int):
        assert (Given(empty).number, Given(empty).close(), Given(empty).doubled) == (3, "default", 6)
        assert "number" not in Given(empty)
        assert "close" not in Given(empty)


def test_members_of_the_component_take_precedence_and_properties_follow_from_them():
    assert (Given(Own()).number, Given(Own()).close(), Given(Own()).doubled) == (5, "own", 10)
    assert "number" in Given(Own())
    assert "close" in Given(Own())


def test_members_are_read_at_each_use():
    own = Own()
    view = Given(own)
    own.number = 8
    assert view.number == 8


def test_an_attribute_in_place_of_a_method_is_no_method():
    prices = type("Prices", (), {"close": 101.5})()
    assert Given(prices).close() == "default"
    assert "close" not in EnvironmentTraits(prices)


def test_an_undeclared_member_is_an_error():
    with pytest.raises(AttributeError, match="numbr"):
        _ = Given(Own()).numbr
    with pytest.raises(AttributeError, match="numbr"):
        _ = "numbr" in Given(Own())


def test_an_error_in_a_property_of_the_component_is_not_hidden():
    class Broken:
        @property
        def number(self) -> int:
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        _ = Given(Broken()).number


def test_plain_functions_and_classes_are_samplers_trainers_and_architectures():
    assert SamplerTraits(lambda *_: None).draws_from_policy
    assert SamplerTraits(lambda *_: None).renew_weights is None
    SamplerTraits(lambda *_: None).close()
    assert TrainerTraits(type("Stub", (), {"needs": ("samples",)})).needs == ("samples",)
    assert ArchitectureTraits(len).kind == LANGUAGE_MODEL
    assert ArchitectureTraits(type("Build", (), {"builds": "an image pipeline"})).kind == "an image pipeline"
    assert ArchitectureTraits(type("Build", (), {"scores_sequences": True})).kind == SCORER
