"""What every file of tests about laws does: hold each law against what breaks it, and against what keeps it.

    WRONG = [Wrong("same_seed_same_numbers", "unseeded", "differ")]

    @pytest.mark.parametrize("case", WRONG, ids=str)
    @pytest.mark.usefixtures("wrong_site")
    def test_a_wrong_trainer_breaks_the_law(case):
        assert_broken(trainers, case, wrong("trainers", case.who))

    def test_every_law_fails_for_at_least_one_wrong_component():
        assert_all_seen(trainers, WRONG)

    @pytest.mark.parametrize("law", laws_in(trainers), ids=law_name)
    def test_a_right_trainer_keeps_the_law(law):
        assert_kept(law, installed("trainers", "sft", ...))

What is wrong lies in wrong/wrong_<kind>.py, and wrong/registered_<kind>.py lists it, importing nothing heavy:

    COMPONENTS = [("trainers", "unseeded", "wrong_trainers:Unseeded", "wrong_trainers:Options")]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import ModuleType
from typing import Any

import attrs
import pytest

from rlcore_testing import Law, LawBroken, Subject
from rlcore_testing.law import laws_in


@attrs.frozen
class Wrong:
    """Name a law, who breaks it, and a part of the message that says so.

    Attributes:
        law: its name.
        who: the component or dist that breaks it.
        says: part of the message, such that no other reason would give it.
        options: what the component is built with.
        error: what is raised, where that is the component's own error passing through.
    """

    law: str
    who: str
    says: str
    options: Mapping[str, Any] = attrs.field(factory=dict)
    error: type[BaseException] = LawBroken

    def __str__(self) -> str:
        return f"{self.law}-{self.who}"


def law_name(law: Law) -> str:
    return law.name


def law_called(module: ModuleType, name: str) -> Law:
    return next(law for law in laws_in(module) if law.name == name)


def assert_broken(module: ModuleType, case: Wrong, subject: Subject) -> None:
    """Hold the law of `case` against `subject` and read the message."""
    law = law_called(module, case.law)
    assert law.when(subject), f"{case.law} would not be held against {case.who} at all"
    with pytest.raises(case.error) as caught:
        law(subject)
    assert case.says in str(caught.value), str(caught.value)


def assert_all_seen(module: ModuleType, cases: Sequence[Wrong]) -> None:
    """Require of every law in `module` that something breaks it."""
    assert {law.name for law in laws_in(module)} == {case.law for case in cases}


def assert_kept(law: Law, subject: Subject, *, but: Collection[str] = ()) -> None:
    """Hold a law that must not break; the laws `but` are those that are not about what `subject` declares."""
    assert law.when(subject) == (law.name not in but), f"{law.name}: held against {subject.it} or not, by mistake"
    if law.name not in but:
        law(subject)
