"""Select the laws that apply to a plugin, check them one by one, and report the outcomes."""

from __future__ import annotations

import difflib
import importlib
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import attrs

from rlcore.components import KINDS, LANGUAGE_MODEL, SCORER, Component, describe_error, normalise
from rlcore.config.options import fields
from rlcore.errors import PluginError
from rlcore.plugins.discovery import Plugin, State
from rlcore.plugins.registry import all_registries
from rlcore.settings import TrainConfig
from rlcore_testing.law import DIST, EVERY, ConformanceError, Law, LawBroken, Subject, laws_in
from rlcore_testing.recorded import Oracle, Remote
from rlcore_testing.rig.isolate import default_signals, isolated, time_limit

MODULES = {
    DIST: "rlcore_testing.laws.dist",
    EVERY: "rlcore_testing.laws.components",
    "trainers": "rlcore_testing.laws.trainers",
    "pipelines": "rlcore_testing.laws.pipelines",
    "architectures": "rlcore_testing.laws.architectures",
    "scorers": "rlcore_testing.laws.scorers",
    "learners": "rlcore_testing.laws.learners",
    "rollout_stores": "rlcore_testing.laws.stores",
    "loggers": "rlcore_testing.laws.loggers",
    "samplers": "rlcore_testing.laws.samplers",
    "rewards": "rlcore_testing.laws.rewards",
    "optimizers": "rlcore_testing.laws.optimizers",
    "schedulers": "rlcore_testing.laws.schedulers",
    "shardings": "rlcore_testing.laws.shardings",
    "environments": "rlcore_testing.laws.environments",
    "commands": "rlcore_testing.laws.commands",
}
"""Kind of law → module that defines its laws."""


@attrs.frozen(eq=False)
class Case:
    """A law and the subject it is checked against; calling the case checks the law."""

    law: Law
    subject: Subject

    @property
    def id(self) -> str:
        """Return the name that pytest shows, such as `trainer-ppo-same_seed_same_numbers`."""
        if self.subject.component is None:
            return f"{DIST}-{self.law.name}"
        return f"{_kind_of(self.subject.component)}-{self.subject.component.name}-{self.law.name}"

    def __call__(self) -> None:
        """Check the law; restore the global random state and the default dtype afterwards.

        Raises:
            LawBroken: the law is broken, or the check takes longer than `TIME_LIMIT_S`.
        """
        with isolated(), default_signals(), time_limit():
            self.law(self.subject)


@attrs.frozen
class Outcome:
    """Result of one case.

    Attributes:
        id: id of the case.
        state: `held`; `broken`; `expected`, an expected failure; `unexpected`, held despite an expected failure.
        message: the failure, or the reason given for the expected failure.
        time_s: seconds the check took.
    """

    id: str
    state: Literal["held", "broken", "expected", "unexpected"]
    message: str
    time_s: float


@attrs.frozen
class Report:
    """Outcomes of all cases of a plugin; `str` formats them, one line for each case."""

    dist: str
    outcomes: tuple[Outcome, ...]

    @property
    def conforms(self) -> bool:
        """Return whether every law held or failed as expected."""
        return all(outcome.state in {"held", "expected"} for outcome in self.outcomes)

    def __str__(self) -> str:
        lines = [f"{self.dist}: {'conforms' if self.conforms else 'does not conform'}, {len(self.outcomes)} laws"]
        for each in self.outcomes:
            lines.append(f"  {each.state:<10} {each.id}  ({each.time_s:.1f} s)")
            lines += [f"             {line}" for line in each.message.splitlines()]
        return "\n".join(lines)


def cases(
    dist: str,
    *,
    options: Mapping[str, Mapping[str, object]] | None = None,
    config: Mapping[str, Mapping[str, object]] | None = None,
    oracles: Mapping[str, Oracle] | None = None,
    remotes: Mapping[str, Remote] | None = None,
) -> list[Case]:
    """Return the cases of an installed dist: laws about the dist, about every component, and about each kind.

    Args:
        dist: name of the dist, as pip lists it, or `dist:entry-point` for one of several plugins.
        options: name of a component, or `kind:name` → options it is built with in every law; other options keep their
            defaults.
        config: section of the configuration → options that differ in the runs of trainers; pipelines are called with
            the section `data`.
        oracles: name of a trainer → its loss in plain torch.
        remotes: name of a sampler → what its workers do, and what can happen to them.

    Raises:
        ConformanceError: no such dist is installed, `options`, `oracles` or `remotes` names a component that the dist
            does not register or that is one of several, or `config` has an unknown section.
    """
    known = all_registries().discovery.plugins
    dist, _, entry = dist.partition(":")
    of_dist = tuple(plugin for plugin in known if plugin.dist == normalise(dist))
    plugins = tuple(plugin for plugin in of_dist if not entry or normalise(plugin.name) == normalise(entry))
    if of_dist and not plugins:
        raise ConformanceError(f"{dist} has no entry point '{entry}': {', '.join(plugin.name for plugin in of_dist)}")
    if not plugins:
        raise ConformanceError(
            f"no installed dist called '{dist}' has an entry point in the group 'rlcore': run pip install -e . in the "
            f"folder of the dist; {_near(normalise(dist), {plugin.dist for plugin in known})}"
        )
    _check_names("config", config or {}, list(fields(TrainConfig)))
    subject = Subject(normalise(dist), plugins, sections=config or {}, oracles=oracles or {}, remotes=remotes or {})
    found = [Case(law, subject) for law in _laws(DIST) if _fits(law, subject)]
    components = [component for plugin in plugins for component in plugin.components]
    addresses = _addresses(components)
    if not _unloaded(plugins):
        _check_names("options", options or {}, [name for names in addresses for name in names])
        _check_names("oracles", oracles or {}, [each.name for each in components if each.kind == "trainers"])
        _check_names("remotes", remotes or {}, [each.name for each in components if each.kind == "samplers"])
    for component, names in zip(components, addresses, strict=True):
        given = next((options[name] for name in names if name in options), {}) if options else {}
        one = attrs.evolve(subject, component=component, options=given)
        found += [Case(law, one) for kind in (EVERY, _law_kind(component)) for law in _laws(kind) if _fits(law, one)]
    return found


def conformance(
    dist: str,
    *,
    options: Mapping[str, Mapping[str, object]] | None = None,
    config: Mapping[str, Mapping[str, object]] | None = None,
    oracles: Mapping[str, Oracle] | None = None,
    remotes: Mapping[str, Remote] | None = None,
    expected_failures: Mapping[str, str] | None = None,
) -> list[Any]:
    """Return the cases of a plugin as parameters of a pytest test, with the ids of the cases.

    Args:
        dist: name of the dist, as pip lists it, or `dist:entry-point` for one of several plugins.
        options: name of a component → options it is built with in every law; where two components share a name,
            `kind:name`, such as `trainer:algo`.
        config: section of the configuration → options that differ in the runs of trainers, such as
            `{"gen": {"top_k": 5}}`; pipelines are called with the section `data`.
        oracles: name of a trainer → its loss in plain torch (`rlcore_testing.Oracle`), which the trainer must equal.
        remotes: name of a sampler whose workers are other processes → `rlcore_testing.Remote`, which describes them.
        expected_failures: id of a case, or name of a law for all components → reason why the law cannot hold. If the
            law holds nevertheless, its test fails.

    Raises:
        ConformanceError: no such dist is installed, a name in `options`, `config`, `oracles`, `remotes` or
            `expected_failures` is unknown, or pytest is missing.
    """
    try:
        import pytest
    except ImportError as error:
        advice = "run pip install 'rlcore[testing]', or call check_plugin, which does not need pytest"
        raise ConformanceError(f"conformance() needs pytest, which is not installed: {advice}") from error

    found = cases(dist, options=options, config=config, oracles=oracles, remotes=remotes)
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
    options: Mapping[str, Mapping[str, object]] | None = None,
    config: Mapping[str, Mapping[str, object]] | None = None,
    oracles: Mapping[str, Oracle] | None = None,
    remotes: Mapping[str, Remote] | None = None,
    expected_failures: Mapping[str, str] | None = None,
) -> Report:
    """Check every law that applies to a plugin; the arguments are those of `conformance`.

    Raises:
        ConformanceError: a law is broken unexpectedly, or an expected failure did not occur; the message is the report.
    """
    found = cases(dist, options=options, config=config, oracles=oracles, remotes=remotes)
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
    except BaseException as error:  # noqa: BLE001  # a plugin's component may raise anything, SystemExit included
        spent = time.perf_counter() - begun
        if expected is not None:
            return Outcome(case.id, "expected", expected, spent)
        message = str(error) if isinstance(error, LawBroken) else describe_error(error)
        return Outcome(case.id, "broken", message, spent)
    spent = time.perf_counter() - begun
    if expected is not None:
        return Outcome(
            case.id,
            "unexpected",
            f"expected to fail, but the law holds; remove the expected failure: {expected}",
            spent,
        )
    return Outcome(case.id, "held", "", spent)


def _kind_of(component: Component[object]) -> str:
    return KINDS[component.kind].replace(" ", "_")


def _addresses(components: Iterable[Component[object]]) -> list[tuple[str, ...]]:
    """Return the names by which `options` refers to each component: `kind:name`, and the name if it is unique."""
    components = list(components)
    count = Counter(component.name for component in components)
    return [(f"{_kind_of(one)}:{one.name}", *([one.name] if count[one.name] == 1 else [])) for one in components]


def _law_kind(component: Component[object]) -> str:
    """Return the kind of the laws about a component: those of scorers, or of other models, for their architectures."""
    if component.kind != "architectures":
        return component.kind
    from rlcore.protocols import ArchitectureTraits  # imports torch

    try:
        kind = ArchitectureTraits(component.target()).kind
    except PluginError:  # the_target_imports reports that
        return component.kind
    return {LANGUAGE_MODEL: component.kind, SCORER: "scorers"}.get(kind, "learners")


def _laws(kind: str) -> list[Law]:
    return laws_in(importlib.import_module(MODULES[kind])) if kind in MODULES else []


def _fits(law: Law, subject: Subject) -> bool:
    """Return whether a law applies to a subject; a law whose condition cannot be evaluated applies, and then fails."""
    try:
        return law.when(subject)
    except Exception:  # noqa: BLE001  a plugin's component may lack any attribute; the other laws are still checked
        return True


def _expected(found: Iterable[Case], given: Mapping[str, str]) -> dict[str, str]:
    """Return the id of each case that is expected to fail → the reason."""
    found = list(found)
    by_name = [(name, case.id) for case in found for name in (case.id, case.law.name)]
    if not any(_unloaded(case.subject.plugins) for case in found):
        _check_names("expected_failures", given, [name for name, _ in by_name])
    return {id_: given[name] for name, id_ in by_name if name in given}


def _unloaded(plugins: Iterable[Plugin]) -> bool:
    """Return whether components may be missing because an entry point did not load (`it_loads` reports that)."""
    return any(plugin.state is not State.OK and not plugin.components for plugin in plugins)


def _check_names(what: str, given: Iterable[str], known: list[str]) -> None:
    for name in given:
        if name not in known:
            raise ConformanceError(f"{what} names '{name}'; {_near(name, known)}")


def _near(name: str, known: Iterable[str]) -> str:
    names = sorted(set(known))
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean '{near[0]}'?" if near else f"known names: {', '.join(names) or 'none'}"
