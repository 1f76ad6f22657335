"""Choose the laws that fit a plugin, hold them one by one, and report."""

from __future__ import annotations

import difflib
import importlib
import time
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import attrs

from rlcore.components import KINDS, describe_error, normalise
from rlcore.plugins.discovery import Plugin, State
from rlcore.plugins.registry import all_registries
from rlcore.testing.law import DIST, EVERY, ConformanceError, Law, LawBroken, Subject, laws_in
from rlcore.testing.rig.isolate import apart, bounded

MODULES = {
    DIST: "rlcore.testing.laws.dist",
    EVERY: "rlcore.testing.laws.components",
    "trainers": "rlcore.testing.laws.trainers",
    "pipelines": "rlcore.testing.laws.pipelines",
    "architectures": "rlcore.testing.laws.architectures",
    "rollout_stores": "rlcore.testing.laws.stores",
    "loggers": "rlcore.testing.laws.loggers",
    "samplers": "rlcore.testing.laws.samplers",
    "rewards": "rlcore.testing.laws.rewards",
    "optimizers": "rlcore.testing.laws.optimizers",
    "schedulers": "rlcore.testing.laws.schedulers",
    "commands": "rlcore.testing.laws.commands",
}
"""Where the laws of each kind are written."""


@attrs.frozen(eq=False)
class Case:
    """Hold a law and whom to hold it against; calling it does so."""

    law: Law
    subject: Subject

    @property
    def id(self) -> str:
        """Name the case as pytest shows it: `trainer-ppo-same_seed_same_numbers`."""
        if self.subject.component is None:
            return f"{DIST}-{self.law.name}"
        kind = KINDS[self.subject.component.kind].replace(" ", "_")
        return f"{kind}-{self.subject.component.name}-{self.law.name}"

    def __call__(self) -> None:
        """Hold the law, and leave the global random state and default dtype, which others may have set, as they were.

        Raises:
            LawBroken: it is broken, or is not over after `TIME_LIMIT_S`.
        """
        with apart(), bounded():
            self.law(self.subject)


@attrs.frozen
class Outcome:
    """Hold how one case ended.

    Attributes:
        id: the case's.
        state: `held`; `broken`; `expected`, broken as was foretold; `unexpected`, held though it was not to be.
        message: what was wrong, or why that was expected.
        time_s: seconds it took.
    """

    id: str
    state: Literal["held", "broken", "expected", "unexpected"]
    message: str
    time_s: float


@attrs.frozen
class Report:
    """Hold how every case of a plugin ended; `str` writes a line for each."""

    dist: str
    outcomes: tuple[Outcome, ...]

    @property
    def conforms(self) -> bool:
        """Tell whether every law held, or was broken as foretold."""
        return all(outcome.state in {"held", "expected"} for outcome in self.outcomes)

    def __str__(self) -> str:
        lines = [f"{self.dist}: {'conforms' if self.conforms else 'does not conform'}, {len(self.outcomes)} laws"]
        for each in self.outcomes:
            lines.append(f"  {each.state:<10} {each.id}  ({each.time_s:.1f} s)")
            lines += [f"             {line}" for line in each.message.splitlines()]
        return "\n".join(lines)


def cases(dist: str, *, options: Mapping[str, Mapping[str, Any]] | None = None) -> list[Case]:
    """List the cases of an installed dist: laws about it, about every component, and about components of each kind.

    Args:
        dist: name of the dist, as pip knows it.
        options: name of a component → options it is built with in every law; defaults serve for the rest.

    Raises:
        ConformanceError: no such dist is installed, or `options` names no component of it.
    """
    known = all_registries().discovery.plugins
    plugins = tuple(plugin for plugin in known if plugin.dist == normalise(dist))
    if not plugins:
        raise ConformanceError(
            f"no installed dist called '{dist}' has an entry point in the group 'rlcore': run pip install -e . in its "
            f"folder; {_near(normalise(dist), {plugin.dist for plugin in known})}"
        )
    subject = Subject(normalise(dist), plugins)
    found = [Case(law, subject) for law in _laws(DIST) if _fits(law, subject)]
    components = [component for plugin in plugins for component in plugin.components]
    if not _unloaded(plugins):
        _check_names("options", options or {}, [component.name for component in components])
    for component in components:
        one = attrs.evolve(subject, component=component, options=(options or {}).get(component.name, {}))
        found += [Case(law, one) for kind in (EVERY, component.kind) for law in _laws(kind) if _fits(law, one)]
    return found


def conformance(
    dist: str,
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    expected_failures: Mapping[str, str] | None = None,
) -> list[Any]:
    """List the cases of a plugin as parameters of a pytest test, each with the name of its law.

    Args:
        dist: name of the dist, as pip knows it.
        options: name of a component → options it is built with in every law.
        expected_failures: id of a case, or name of a law for every component → why it cannot be kept; a law that is
            kept all the same fails its test.

    Raises:
        ConformanceError: no such dist is installed, a name stands for nothing, or pytest is missing.
    """
    try:
        import pytest
    except ImportError as error:
        advice = "run pip install 'rlcore[testing]', or call check_plugin, which does without"
        raise ConformanceError(f"conformance lists parameters for pytest, which is not installed: {advice}") from error

    found = cases(dist, options=options)
    reasons = _expected(found, expected_failures or {})
    return [
        pytest.param(
            case,
            id=case.id,
            marks=[pytest.mark.xfail(strict=True, reason=reasons[case.id])] if case.id in reasons else [],
        )
        for case in found
    ]


def check_plugin(
    dist: str,
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    expected_failures: Mapping[str, str] | None = None,
) -> Report:
    """Hold every law that fits against a plugin; the arguments are those of `conformance`.

    Raises:
        ConformanceError: a law is broken that was not expected to be, or one is kept that was; the message is the
            report.
    """
    found = cases(dist, options=options)
    reasons = _expected(found, expected_failures or {})
    report = Report(normalise(dist), tuple(_outcome(case, reasons.get(case.id)) for case in found))
    if not report.conforms:
        raise ConformanceError(str(report))
    return report


def _outcome(case: Case, expected: str | None) -> Outcome:
    begun = time.perf_counter()
    try:
        case()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  # a stranger's component may raise anything, SystemExit included
        spent = time.perf_counter() - begun
        if expected is not None:
            return Outcome(case.id, "expected", expected, spent)
        message = str(error) if isinstance(error, LawBroken) else describe_error(error)
        return Outcome(case.id, "broken", message, spent)
    spent = time.perf_counter() - begun
    if expected is not None:
        return Outcome(case.id, "unexpected", f"it was to fail: {expected}", spent)
    return Outcome(case.id, "held", "", spent)


def _laws(kind: str) -> list[Law]:
    return laws_in(importlib.import_module(MODULES[kind]))


def _fits(law: Law, subject: Subject) -> bool:
    """Tell whether a law is about what the subject declares; where that cannot be read, the law is held and says so."""
    try:
        return law.when(subject)
    except Exception:  # noqa: BLE001  a stranger's component may lack anything, and the other laws are to be held
        return True


def _expected(found: Iterable[Case], given: Mapping[str, str]) -> dict[str, str]:
    """Return the reason for each case that is to fail, by its id."""
    found = list(found)
    by_name = [(name, case.id) for case in found for name in (case.id, case.law.name)]
    if not any(_unloaded(case.subject.plugins) for case in found):
        _check_names("expected_failures", given, [name for name, _ in by_name])
    return {id_: given[name] for name, id_ in by_name if name in given}


def _unloaded(plugins: Iterable[Plugin]) -> bool:
    """Tell whether components may be missing because an entry point did not load, which a law of its own says."""
    return any(plugin.state is not State.OK and not plugin.components for plugin in plugins)


def _check_names(what: str, given: Iterable[str], known: list[str]) -> None:
    for name in given:
        if name not in known:
            raise ConformanceError(f"{what} names '{name}'; {_near(name, known)}")


def _near(name: str, known: Iterable[str]) -> str:
    names = sorted(set(known))
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean '{near[0]}'?" if near else f"there is {', '.join(names) or 'nothing'}"
