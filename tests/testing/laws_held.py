"""What tests of laws share: the table of wrong components, and how a law is held against a component.

What is wrong lies in wrong/wrong_<kind>.py. wrong/laws_that_fail.txt has a row for each: the law that it breaks, and
what the message says; wrong/registered.py registers them.
"""

from __future__ import annotations

import builtins
from collections.abc import Collection
from types import ModuleType

import attrs
import pytest
from registered import read_rows

from rlcore_testing import Law, LawBroken, Subject
from rlcore_testing.law import laws_in
from rlcore_testing.laws import (
    architectures,
    commands,
    components,
    dist,
    environments,
    learners,
    loggers,
    optimizers,
    pipelines,
    rewards,
    samplers,
    schedulers,
    scorers,
    shardings,
    stores,
    trainers,
)

LAWS: dict[str, ModuleType] = {
    "dists": dist, "components": components, "architectures": architectures, "commands": commands,
    "environments": environments,
    "learners": learners, "loggers": loggers, "optimizers": optimizers, "schedulers": schedulers,
    "pipelines": pipelines, "rewards": rewards, "samplers": samplers, "scorers": scorers, "shardings": shardings,
    "rollout_stores": stores, "trainers": trainers,
}  # fmt: skip
"""The laws of each kind of subject."""


@attrs.frozen
class Wrong:
    """Name a law, who breaks it, and a part of the message that says so.

    Attributes:
        kind: the kind of what breaks it, a key of `LAWS`.
        law: its name.
        who: the component or dist that breaks it.
        says: part of the message, such that no other reason would give it.
        error: what is raised, where that is the component's own error passing through.
    """

    kind: str
    law: str
    who: str
    says: str
    error: type[BaseException] = LawBroken

    def __str__(self) -> str:
        return f"{self.kind}-{self.law}-{self.who}"


WRONG = [
    Wrong(kind, law, name, says, getattr(builtins, error) if error else LawBroken)
    for kind, law, name, error, says in read_rows()
]


def law_name(law: Law) -> str:
    return law.name


def law_called(module: ModuleType, name: str) -> Law:
    return next(law for law in laws_in(module) if law.name == name)


def assert_broken(case: Wrong, subject: Subject) -> None:
    """Hold the law of `case` against `subject` and read the message."""
    law = law_called(LAWS[case.kind], case.law)
    assert law.when(subject), f"{case.law} would not be held against {case.who} at all"
    with pytest.raises(case.error) as caught:
        law(subject)
    assert case.says in str(caught.value), str(caught.value)


def assert_kept(law: Law, subject: Subject, *, but: Collection[str] = ()) -> None:
    """Hold a law that must not break; the laws `but` are those that are not about what `subject` declares."""
    assert law.when(subject) == (law.name not in but), f"{law.name}: held against {subject.it} or not, by mistake"
    if law.name not in but:
        law(subject)
