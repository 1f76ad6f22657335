"""Choose a trainer if the user names none: the one whose class attribute `default_for` fits the given inputs best."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import attrs

from rlcore.components import Component
from rlcore.errors import InputsError, PluginError, UnknownTrainer
from rlcore.plugins.published import published
from rlcore.plugins.registry import Registry


@attrs.frozen
class Candidate:
    """A trainer that is the default for some inputs.

    Attributes:
        name: its short name.
        fits: the inputs, from its class or, where it is not installed, from the table of published plugins.
        component: None where it is not installed.
        needs: the inputs that it cannot do without.
    """

    name: str
    fits: tuple[str, ...]
    component: Component[Any] | None = None
    needs: tuple[str, ...] = ()

    @property
    def weight(self) -> tuple[bool, int]:
        """Rank this candidate: a reward function outweighs samples, and several inputs outweigh one of them."""
        return "reward_fn" in self.fits, len(self.fits)


def default_trainer(given: Sequence[str], trainers: Registry[Any]) -> Component[Any]:
    """Return the trainer that fits the inputs best.

    Args:
        given: names of the inputs that the user gave.
        trainers: the installed trainers.

    Raises:
        InputsError: no trainer fits, several fit equally well, or the one that fits is not installed.
    """
    everyone = _candidates(trainers)
    fitting = [each for each in everyone if each.fits and set(each.fits) <= set(given)]
    if not fitting:
        raise InputsError(
            f"nothing to learn from: given were {', '.join(given) or 'no inputs'}; pass {_choices(everyone)}"
        )
    weight = max(each.weight for each in fitting)
    best = [each for each in fitting if each.weight == weight]
    installed = [each.component for each in best if each.component is not None]
    if len(installed) == 1:
        return installed[0]
    if installed:
        names = ", ".join(f"'{component.qualified}'" for component in installed)
        raise InputsError(f"what was given ({', '.join(given)}) fits several trainers, {names}; name one of them")
    try:
        return trainers.get(best[0].name)
    except UnknownTrainer as error:
        raise InputsError(
            f"what was given ({', '.join(given)}) calls for trainer '{best[0].name}', and none was named: {error}"
        ) from error


def other_trainer(given: Collection[str], trainers: Registry[Any], *, than: str) -> str | None:
    """Return the name of an installed trainer, other than `than`, that has all it needs; None if there is none."""
    usable = [
        each
        for each in _candidates(trainers)
        if each.component is not None and each.name != than and each.fits and {*each.fits, *each.needs} <= set(given)
    ]
    return max(usable, key=lambda each: each.weight).name if usable else None


def _candidates(trainers: Registry[Any]) -> list[Candidate]:
    found = []
    for component in trainers:
        try:
            target = component.target()
        except PluginError:  # reported where that trainer is asked for
            continue
        fits, needs = tuple(getattr(target, "default_for", ())), tuple(getattr(target, "needs", ()))
        found.append(Candidate(component.name, fits, component, needs))
    here = {candidate.name for candidate in found}
    return found + [Candidate(name, one.default_for) for name, one in published("trainers").items() if name not in here]


def _choices(everyone: Sequence[Candidate]) -> str:
    """List which inputs call for which trainer, each as `input and input ('trainer')`."""
    fits = sorted((each for each in everyone if each.fits), key=lambda each: each.weight, reverse=True)
    return " or ".join(f"{' and '.join(each.fits)} ('{each.name}')" for each in fits)
