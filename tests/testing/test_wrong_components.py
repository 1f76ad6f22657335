"""Tests that each law of the kit fails for a component that is wrong in just that: wrong/laws_that_fail.txt."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from components_made import SUBJECTS
from dists_made import DISTS
from laws_held import LAWS, WRONG, Wrong, assert_broken, law_called
from registered import AS_ARCHITECTURES
from sites import installed

from rlcore_testing import Subject
from rlcore_testing.law import laws_in
from rlcore_testing.laws import architecture_saving, dist, environments, loggers, remote_samplers, submitted_rounds
from rlcore_testing.rig.reference_transformers import read_folders
from rlcore_testing.rig.worker import Spawned

ELSEWHERE = {
    "it_equals_its_oracle", "two_processes_equal_the_oracle", *(law.name for law in laws_in(remote_samplers)),
    *(law.name for law in laws_in(submitted_rounds)),
}  # fmt: skip
"""Laws that are seen to fail in test_oracle_laws.py, test_remote_laws.py and test_submission_law.py."""
FIRST = {(case.kind, case.law): case for case in reversed(WRONG)}
"""One wrong component of each law: by day each law is seen to fail once, and at night for every other reason."""


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep laws short: no worker for the components of every installed package, no long wait for threads."""
    monkeypatch.setattr(dist, "worker", Spawned)
    for module in (loggers, environments):
        monkeypatch.setattr(module, "GRACE_S", 0.2)
    yield
    torch.set_grad_enabled(True)


def wrong(kind: str, who: str) -> Subject:
    if kind == "components":
        return SUBJECTS[who]
    of = "architectures" if kind in AS_ARCHITECTURES else kind
    return installed(of, f"acme-wrong:{AS_ARCHITECTURES.get(kind, '')}{who}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case), marks=[] if case is FIRST[case.kind, case.law] else [pytest.mark.nightly])
        for case in WRONG
    ],
)
def test_a_wrong_component_breaks_the_law(
    case: Wrong, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case.kind == "dists":
        assert_broken(case, DISTS[case.who].install(request.getfixturevalue("site")))
        return
    request.getfixturevalue("wrong_site")
    if case.who in {"HeadsInside", "TokenizerUnsaved"}:  # what a new process adds is seen with SavesStart
        monkeypatch.setattr(
            architecture_saving, "call_in_new_process", lambda function, arguments, what: read_folders(**arguments)
        )
    assert_broken(case, wrong(case.kind, case.who))


@pytest.mark.parametrize("kind", LAWS)
def test_every_law_fails_for_at_least_one_wrong_component(kind: str) -> None:
    seen = {case.law for case in WRONG if case.kind == kind}
    assert {law.name for law in laws_in(LAWS[kind])} - ELSEWHERE == seen


FOLLOWING = {
    # its file in the run's folder is empty
    ("a_resumed_run_keeps_earlier_logs", "astray"),
    # what cannot be imported at all, and what cannot be structured at all
    ("the_target_accepts_its_arguments", "lost"), ("the_target_accepts_its_arguments", "lost_module"),
    ("the_target_pickles", "lost"), ("the_target_pickles", "lost_module"),
    ("options_round_trip", "mistyped"), ("options_round_trip", "nan"),
    # pipelines whose rows are missing or in another order
    ("rows_keep_their_order", "dropping"), ("rows_do_not_depend_on_each_other", "dropping"),
    ("rows_keep_their_order", "shuffling"), ("rows_do_not_depend_on_each_other", "sorting"),
    ("rows_do_not_depend_on_each_other", "shuffling"), ("padding_with_eos_changes_nothing", "shuffling"),
    ("columns_are_kept", "sorting"), ("columns_are_kept", "shuffling"), ("further_keys_change_nothing", "shuffling"),
    # by the global generator
    ("the_source_is_not_changed", "shuffling"),
    # files in another order, and a source that is a name
    ("files_have_the_tokens_of_their_rows", "shuffling"), ("files_have_the_tokens_of_their_rows", "spoiling"),
}  # fmt: skip
"""What breaks a law because it breaks another."""
IN_OTHER_LAWS = {"loggers": {"untouched", "clingy", "table", "counting", "curious", "scored"}}
"""Loggers that raise wherever nothing usual is logged, or at the end of a failed run: this shows in other laws too."""
READS_NONE = "reads_none"
"""A pipeline that breaks every law."""


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, law.name)
        for kind in ("components", "loggers", "pipelines")
        for law in laws_in(LAWS[kind])
        if law.name != "options_are_light"
    ],
)
@pytest.mark.usefixtures("wrong_site")
def test_a_wrong_component_breaks_no_other_law(kind: str, name: str) -> None:
    law, broken = law_called(LAWS[kind], name), set()
    cases = [case for case in WRONG if case.kind == kind and case.who != READS_NONE]
    for who in {case.who for case in cases} | (SUBJECTS.keys() if kind == "components" else set()):
        try:
            subject = wrong(kind, who)
            if law.when(subject):
                law(subject)
        except Exception:  # noqa: BLE001  a wrong component raises what it likes
            broken.add(who)
    expected = {case.who for case in cases if case.law == name} | {who for of, who in FOLLOWING if of == name}
    assert expected <= broken <= expected | IN_OTHER_LAWS.get(kind, set())


@pytest.mark.parametrize(
    ("who", "laws"),
    [
        ("whitened", {"splitting_a_batch_changes_nothing"}),
        ("silent", {"some_output_gets_a_number"}),
        ("first_letter", {"an_empty_output_is_accepted"}),
        ("counting_columns", {"columns_it_does_not_take_change_nothing"}),
    ],
)
@pytest.mark.usefixtures("wrong_site")
def test_a_wrong_reward_breaks_no_other_law(who: str, laws: set[str]) -> None:
    broken, subject = set(), wrong("rewards", who)
    for law in laws_in(LAWS["rewards"]):
        if law.name == "another_process_same_numbers" or not law.when(subject):  # the first takes seconds
            continue
        try:
            law(subject)
        except AssertionError:
            broken.add(law.name)
    assert broken == laws
