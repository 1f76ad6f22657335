"""Tests of what laws of the kit apply to, and of what they compute."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch
from dists_made import DISTS, RIGHT
from laws_held import law_called
from sites import Site, wrong

from rlcore_testing import Law, LawBroken, Subject
from rlcore_testing.cases import cases
from rlcore_testing.law import laws_in
from rlcore_testing.laws import dist, learners, rewards, samplers, scorers
from rlcore_testing.rig.sampler_calls import chi_square_probability
from rlcore_testing.rig.worker import Spawned


@pytest.mark.parametrize("law", laws_in(learners), ids=lambda law: law.name)
@pytest.mark.usefixtures("wrong_site")
def test_each_law_names_an_example_that_differs_in_every_call(law: Law) -> None:
    with pytest.raises(LawBroken, match="two calls of its `example_model` return different weights"):
        law(wrong("architectures", "learns-Unseeded"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("laws", "plugin", "name"),
    [(learners, "acme-wrong", "learns-Toy"), (scorers, "rlcore-reward", "sequence_scorer")],
    ids=["learner", "scorer"],
)
def test_learners_and_scorers_have_their_own_laws_and_not_those_of_architectures(
    laws: ModuleType, plugin: str, name: str, request: pytest.FixtureRequest
) -> None:
    if plugin == "acme-wrong":
        request.getfixturevalue("wrong_site")
    names = {case.law.name for case in cases(plugin) if case.id.startswith(f"architecture-{name}-")}
    assert {law.name for law in laws_in(laws)} <= names
    assert "decoding_equals_scoring" not in names


@pytest.mark.usefixtures("wrong_site")
def test_the_law_of_frequencies_fails_for_best_of_two_unless_it_declares_itself() -> None:
    subject, chance = wrong("samplers", "best_of_two"), law_called(samplers, "frequencies_match_the_policy")
    assert not chance.when(subject)
    with pytest.raises(AssertionError, match="frequencies should follow"):
        chance(subject)


def test_the_probability_of_frequencies_is_that_of_pearsons_test() -> None:
    from scipy import stats

    counts = torch.tensor([30.0, 14.0, 34.0, 45.0, 57.0, 20.0]).double()
    seen = chi_square_probability(counts, torch.full((6,), 1 / 6).double())
    assert seen == pytest.approx(float(stats.chisquare(counts.numpy()).pvalue), rel=1e-6)


def test_rare_outcomes_are_pooled() -> None:
    """Of 100, 90 of one and 10 of the others together are due: (88 - 90)^2 / 90 + (12 - 10)^2 / 10 = 4 / 9."""
    counts = torch.tensor([1.0, 88.0, 2.0, 9.0]).double()
    seen = chi_square_probability(counts, torch.tensor([0.03, 0.9, 0.03, 0.04]).double())
    assert seen == pytest.approx(0.5050, abs=1e-4)  # one degree of freedom: erfc(sqrt(4 / 9 / 2))


@pytest.mark.usefixtures("wrong_site")
def test_options_reach_the_reward() -> None:
    law_called(rewards, "some_output_gets_a_number")(wrong("rewards", "counting", word="please"))
    assert rewards._scores(wrong("rewards", "counting", word="no"), ("no no", "yes")) == [2.0, 0.0]


def test_a_single_module_has_no_types_to_ship(site: Site) -> None:
    site.install("acme", {"acme_alone.py": RIGHT}, entry="acme_alone")
    assert not law_called(dist, "it_ships_its_types").when(site.subject("acme"))


def test_a_disabled_dist_breaks_the_law_that_it_loads(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    DISTS["right"].install(site)
    monkeypatch.setenv("RLCORE_DISABLE_PLUGINS", "acme")
    from rlcore.plugins.discovery import discover

    plugins = tuple(plugin for plugin in discover().plugins if plugin.dist == "acme")
    with pytest.raises(AssertionError, match="is disabled: RLCORE_DISABLE_PLUGINS names it; unset"):
        law_called(dist, "it_loads")(Subject("acme", plugins))


@pytest.mark.slow
def test_laws_leave_the_working_folder_unchanged(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "worker", Spawned)  # for the only test of a dist, no worker that loads every package
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    subject = DISTS["right"].install(site)
    for law in laws_in(dist):
        if law.when(subject):
            law(subject)
    assert not list((tmp_path / "here").iterdir())
