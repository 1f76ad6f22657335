"""Laws of trainers about numbers that are not finite: nothing is learned from one without a word."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from tempfile import TemporaryDirectory
from typing import Any

import attrs

from rlcore.errors import RLCoreError
from rlcore_testing.law import LawBroken, Subject, law
from rlcore_testing.rig.isolate import call_on_two_ranks
from rlcore_testing.rig.rollouts import PLACES, VALUES
from rlcore_testing.rig.runs import Tiny, eager_options, run

COUNTED = "skipped"
"""How the name of a metric ends that counts what was left out because of a bad number."""
VISIBLE = 1e15
"""A metric of this size shows a number that is finite, but out of all proportion."""
ADVICE = (
    "Step with run.updater, whose `accumulate` and `step` skip an optimizer step with a loss, a metric or a gradient "
    "that is not finite and count it in grad/skipped; raise Diverged, or count what you leave out in a metric whose "
    "name ends in `skipped`"
)


@law("trainers")
def a_bad_number_stops_the_run_or_is_counted(subject: Subject) -> None:
    """NaN, an infinity or 1e30 in one place ends the run with an error, or is counted in a metric `.../skipped`.

    The places: the reward of one output; the gradient of one weight; one activation; one log-prob, with and without
    gradients; one log-prob of the reference, and so the KL; one value; one output of a further head; one score. A
    number that is finite may also show in a metric, as one above 1e15. Weights stay finite.
    """
    with TemporaryDirectory() as root:
        tiny = Tiny.of(subject, root, options=eager_options(subject), steps=1, rollouts="sampled")
        clean = outcome(tiny)
        for place in PLACES:
            for value in VALUES[: -1 if place == "activation" else None]:  # layers may normalise 1e30
                bad = {"place": place, "value": repr(value)}
                folder = f"{root}/{place}/{value}"  # what a run keeps beside its folder is not for the next one
                found = outcome(attrs.evolve(tiny, root=folder, bad=bad))
                if not found.get("stopped") and not found["reached"]:
                    break  # this trainer does not use the place
                _check(f"{value} in one place ({place})", value, found, clean)


@law("trainers")
def a_bad_number_on_one_rank_stops_the_run_or_is_counted(subject: Subject) -> None:
    """An infinite gradient of one weight on one of two processes ends the run, or its step is skipped on both."""
    with TemporaryDirectory() as root:
        bad = {"place": "gradient", "value": repr(math.inf), "rank": 1}
        tiny = Tiny.of(subject, root, options=eager_options(subject), steps=1, rollouts="scripted", bad=bad)
        found = call_on_two_ranks(
            "rlcore_testing.laws.trainer_numbers:outcome_described", {"description": attrs.asdict(tiny)},
            what="an infinite gradient in one of two processes",
        )  # fmt: skip
        _check("inf in the gradient of one of two processes", math.inf, found, {})


def _check(what: str, value: float, found: dict[str, Any], clean: dict[str, Any]) -> None:
    if found.get("stopped"):
        return
    if not found["finite"]:
        raise LawBroken(f"expected {what} to leave finite weights; the run ended with others, and no error. {ADVICE}")
    is_unused = found["weights"] == clean.get("weights")
    if not (found["counted"] or is_unused or (math.isfinite(value) and found["visible"])):
        raise LawBroken(
            f"expected {what} to end the run, or to be counted; the run trained on, and no metric `.../skipped` is "
            f"above 0. {ADVICE}"
        )


def outcome(tiny: Tiny) -> dict[str, Any]:
    """Return what became of a run: `stopped`, the error; or whether the number is `counted` or `visible`, and more.

    `finite` is whether all weights are, `reached` whether the number was put anywhere, and `weights` a digest of them.
    """
    try:
        ran = run(tiny)
    except RLCoreError as error:
        return {"stopped": f"{type(error).__name__}: {error}"}
    rows = ran.watch.arguments_of("on_step")
    weights = [weight.detach().cpu() for weight in ran.result.policy.module.state_dict().values()]
    numbers = {name: [row[name] for row in rows if name in row] for row in rows for name in row}
    return {
        "reached": ran.watch.spoiler is None or ran.watch.spoiler.count > 0,
        "counted": any(name.endswith(COUNTED) and sum(values) > 0 for name, values in numbers.items()),
        "visible": any(not abs(value) < VISIBLE for values in numbers.values() for value in values),
        "finite": all(bool(weight.isfinite().all()) for weight in weights),
        "weights": hashlib.sha256(b"".join(weight.contiguous().numpy().tobytes() for weight in weights)).hexdigest(),
    }


def outcome_described(description: Mapping[str, Any]) -> dict[str, object]:
    """Return the outcome of a run that another process describes."""
    return outcome(Tiny(**description))
