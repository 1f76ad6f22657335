"""Laws that compare a trainer with its loss in plain torch, which its author states (`rlcore_testing.Oracle`)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import torch
from torch import Tensor

from rlcore.config import merge
from rlcore.settings import OptimizerConfig
from rlcore_testing.law import LawBroken, Subject, law
from rlcore_testing.recorded import Recorded
from rlcore_testing.rig.gradient_noise import double_precision
from rlcore_testing.rig.isolate import call_on_two_ranks
from rlcore_testing.rig.recorder import RecordingWatch, record
from rlcore_testing.rig.runs import Tiny, noisy

STEPS = 2
RATE = 0.01
TEMPERATURE = 0.7
TOLERANCE = 1e-10
"""Largest difference of a weight, and of a metric relative to its size (at least 1), in float64."""
SAMPLES = (
    ["ab", "cde"], ["who? ", "me!", " why", "?"], ["q", "!"], ["f", "aa", "go", " on and on"], ["long ", "ago it"],
    ["z", "a b", ".", "n"], ["m", "nop"],
)  # fmt: skip
"""Demonstrations with one and with two outputs."""
REWARDS = (1.0, -0.5, 0.25, 2.0, 0.5, -1.0, 1.5)
WAYS: tuple[tuple[Mapping[str, int], str], ...] = (
    ({}, "scripted"), ({"micro_batch_size": 1}, "padded"), ({"micro_batch_size": 3}, "scripted"),
    ({"micro_batch_tokens": 24}, "padded"),
)  # fmt: skip
"""Options of micro-batches, and the form of the rollouts (`Tiny.rollouts`)."""


@attrs.frozen
class _Expected:
    """What an oracle computes: weights after the last step by the policy's names, and metrics of each step."""

    weights: Mapping[str, Tensor]
    metrics: list[dict[str, float]]


def _has_an_oracle(subject: Subject) -> bool:
    """Return whether its author states its loss in plain torch (`oracles`)."""
    return subject.it.name in subject.oracles


@law("trainers", when=_has_an_oracle)
def it_equals_its_oracle(subject: Subject) -> None:
    """Weights and stated metrics equal the oracle's in float64, for any micro-batches and padding.

    The runs have two steps of plain gradient descent, at a sampling temperature of 0.7.
    """
    with TemporaryDirectory() as root:
        tiny, before, expected = _described(subject, root), None, None
        for number, (options, rollouts) in enumerate(WAYS):
            if all(hasattr(subject.config(), option) for option in options):
                other = {**tiny.options, **options}
                recorder = record(noisy(attrs.evolve(tiny, name=f"way-{number}", options=other, rollouts=rollouts)))
                inputs = _inputs(recorder.recorded)
                if expected is None or inputs != before:
                    before, expected = inputs, _expected(subject, recorder)
                what = " and ".join(f"with {option} = {bound}" for option, bound in options.items())
                padding = ", with padding on both sides" if rollouts == "padded" else ""
                _compare(expected, recorder.weights, recorder.metrics, what + padding or "of whole batches")


@law("trainers", when=_has_an_oracle)
def two_processes_equal_the_oracle(subject: Subject) -> None:
    """Weights and stated metrics of a run in two processes equal the oracle's in float64."""
    with TemporaryDirectory() as root:
        tiny = _described(subject, root)
        expected = _expected(subject, record(tiny))
        two = {"description": attrs.asdict(noisy(attrs.evolve(tiny, name="two")))}
        found = call_on_two_ranks("rlcore_testing.rig.recorder:outcome", two, what="training in two processes")
        weights = {name: torch.tensor(weight, dtype=torch.float64) for name, weight in found["weights"].items()}
        _compare(expected, weights, found["metrics"], "in two processes")


def _described(subject: Subject, root: str) -> Tiny:
    if not isinstance(getattr(subject.config(), "optimizer", None), OptimizerConfig):
        raise LawBroken(
            "expected a trainer with an oracle to have the option `optimizer` of the type `OptimizerConfig`, as "
            "rlcore.settings.BatchOptions has: the kit sets plain gradient descent, which it repeats with the oracle"
        )
    kept = {name: value for name, value in subject.options.items() if name != "optimizer"}
    descent = {"optimizer": {"name": "sgd", "lr": RATE, "max_grad_norm": 0.0}}
    return Tiny.of(
        subject, root, options=merge(kept, descent), steps=STEPS, rollouts="scripted",
        given={"samples": [list(row) for row in SAMPLES], "rewards": list(REWARDS)},
        sections={"gen": {"temperature": TEMPERATURE}},
    )  # fmt: skip


def _inputs(recorded: Recorded) -> tuple[Any, ...]:
    """Return what the result of an oracle follows from, apart from the weights, which are equal in all runs."""
    return recorded.samples, recorded.rounds, recorded.steps, recorded.ends


def _expected(subject: Subject, recorder: RecordingWatch) -> _Expected:
    """Train the plain model with the oracle's losses."""
    recorded = recorder.recorded
    metrics: list[dict[str, float]] = [{} for _ in recorded.ends]
    num_made, due = 0, len(recorded.steps)
    with double_precision(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Converting a tensor with requires_grad")
        trained = [each for each in (*recorded.model.parameters(), *recorded.heads.values()) if each.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=RATE)
        for loss, stated in subject.oracles[subject.it.name](recorded):
            num_made += 1
            if num_made > due:
                break
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step = next(step for step, end in enumerate(recorded.ends) if num_made <= end)
            metrics[step] |= {name: float(value) for name, value in stated.items()}
    if num_made != due:
        raise LawBroken(
            f"expected the oracle to yield the losses of the {due} optimizer steps that the trainer made; it yields "
            f"{'more' if num_made > due else num_made}. `ends` has their number by the end of each step of the run"
        )
    if not any(metrics):
        raise LawBroken('expected the oracle to state a metric that is logged, as in yield loss, {"loss/total": loss}')
    weights = {recorder.prefix + name: weight.detach() for name, weight in recorded.model.named_parameters()}
    return _Expected(weights | {name: weight.detach() for name, weight in recorded.heads.items()}, metrics)


def _compare(expected: _Expected, weights: Mapping[str, Tensor], metrics: list[dict[str, float]], how: str) -> None:
    for step, (stated, logged) in enumerate(zip(expected.metrics, metrics, strict=True), start=1):
        for name, value in stated.items():
            if name not in logged:
                raise LawBroken(f"expected step {step} to log {name}, which the oracle states; logged: {[*logged]}")
            if not abs(logged[name] - value) <= TOLERANCE * max(1.0, abs(value)):
                raise LawBroken(
                    f"expected {name} of step {step}, {how}, to be {value:.12g} as the oracle computes it; the trainer "
                    f"logs {logged[name]:.12g}"
                )
    for name, weight in weights.items():
        off = float((weight - expected.weights[name]).abs().max())
        if not off <= TOLERANCE:
            raise LawBroken(
                f"expected the weights of the run, {how}, to be those that the oracle's losses give; {name} is off by "
                f"{off:.1e}, so the gradients of the losses differ"
            )
