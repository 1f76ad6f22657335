"""Series drawn by hand: twelve bad and eight good runs of each of four kinds of trainers, made in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from labelled import LabelledRun

from rlcore_report.health import judged_run as causes
from rlcore_report.metric_groups import Floats, Series

STEPS, SEED = 80, 20
DONE = np.linspace(0, 1, STEPS)


def towards(first: float, last: float, pace: float = 5.0) -> Floats:
    """Return values that go from one number to another, at first fast."""
    return last + (first - last) * np.exp(-pace * DONE)


def late(before: Any, after: Any, at: float = 0.5) -> Floats:
    """Return the first values up to a share of the run, and then the others."""
    return np.where(at > DONE, before, after)


Changes = Mapping[str, Any]
"""By the name of a metric, its values; evaluations are spread evenly over the run from step 0 on."""


def _policy() -> dict[str, Any]:
    return {
        "reward/mean": towards(0.25, 0.8, 3), "reward/std": 0.3, "reward/max": 1.0, "reward/min": 0.0,
        "eval/reward/mean": [0.25, 0.55, 0.7, 0.76, 0.8], "policy/entropy": towards(2.0, 1.2, 2),
        "policy/approx_kl": 0.004, "policy/ratio_mean": 1.0, "policy/clip_fraction": 0.1, "kl/mean": 6 * DONE + 1e-3,
        "response/length_mean": 60.0, "response/truncated_fraction": 0.08, "value/explained_variance": 0.6 * DONE,
        "loss/policy": -0.01, "grad/norm": 0.8, "grad/skipped": 0.0, "lr": 1e-5, "progress/epoch": 4 * DONE + 0.05,
        "group/zero_spread_fraction": 0.2,
    }  # fmt: skip


def _supervised() -> dict[str, Any]:
    return {
        "loss/total": towards(2.2, 1.3, 4), "eval/loss": [2.25, 1.7, 1.5, 1.42, 1.4], "grad/norm": towards(1.6, 0.9),
        "grad/skipped": 0.0, "lr": 2e-5, "progress/epoch": 3 * DONE + 0.03,
    }  # fmt: skip


def _preferences() -> dict[str, Any]:
    return {
        "loss/total": towards(0.693, 0.42, 4), "eval/loss/total": [0.693, 0.6, 0.55, 0.53, 0.52], "grad/norm": 1.4,
        "rewards/accuracies": towards(0.5, 0.82, 5), "eval/rewards/accuracies": [0.5, 0.66, 0.71, 0.73, 0.74],
        "logps/chosen": towards(-60.0, -66.0), "kl/mean": 3 * DONE, "grad/skipped": 0.0, "lr": 5e-6,
        "progress/epoch": 2 * DONE + 0.02,
    }  # fmt: skip


def _scores() -> dict[str, Any]:
    return {
        "loss/total": towards(0.72, 0.45, 4), "eval/loss": [0.71, 0.6, 0.56, 0.54, 0.53], "grad/norm": 2.0,
        "reward/accuracy": towards(0.5, 0.8, 5), "eval/reward/accuracy": [0.5, 0.65, 0.7, 0.73, 0.74],
        "reward/mean": 0.3 * DONE, "reward/std": 1.0, "grad/skipped": 0.0, "lr": 1e-5,
        "progress/epoch": 2 * DONE + 0.02,
    }  # fmt: skip


LOST = {"reward/mean": late(towards(0.25, 0.8, 6), 0.2), "eval/reward/mean": [0.25, 0.7, 0.75, 0.2, 0.2]}
NONE, RISES = 0.0, {"loss/total": towards(2.2, 0.3, 5)}
OFTEN = {"progress/epoch": 30 * DONE + 0.3}
FALLING = {"reward/mean": towards(0.5, 0.1, 3), "eval/reward/mean": [0.5, 0.35, 0.2, 0.15, 0.1]}
BAD: dict[str, tuple[Any, list[tuple[str, Changes]]]] = {
    "policy": (_policy, [
        (causes.CONSTANT, {"reward/mean": 0.5, "reward/std": NONE, "reward/max": 0.5, "reward/min": 0.5,
                           "eval/reward/mean": [0.5] * 5, "group/zero_spread_fraction": 1.0}),
        (causes.INVERTED, FALLING),
        (causes.TOO_LARGE, LOST),
        (causes.TOO_LARGE, {"policy/approx_kl": 0.7, "policy/clip_fraction": 0.7, "reward/mean": 0.25 - 0.1 * DONE}),
        (causes.COLLAPSED, {"policy/entropy": towards(2.0, 0.01, 4), "reward/mean": towards(0.25, 0.45, 4)}),
        (causes.EXPLODED, {"policy/entropy": towards(1.5, 7.0, 3), "reward/mean": 0.25,
                           "eval/reward/mean": [0.25] * 5}),
        (causes.LARGE_GRADIENT, {"grad/norm": 1e6}),
        (causes.DISAGREE, {"reward/mean": towards(0.84, 0.996, 3), "eval/correct": [0.264, 0.2, 0.02, 0.0, 0.0]}),
        (causes.TRUNCATED, {"response/truncated_fraction": 0.97, "reward/mean": towards(0.25, 0.35, 3)}),
        (causes.EMPTY, {"response/length_mean": towards(60, 1.05, 8)}),
        (causes.OTHER_POLICY, {"policy/ratio_mean": 0.6}),
        (causes.ZERO_RATE, {"lr": 0.0, "reward/mean": 0.25, "eval/reward/mean": [0.25] * 5, "kl/mean": 1e-9,
                            "policy/approx_kl": 1e-14}),
    ]),
    "supervised": (_supervised, [
        (causes.OVERFITTED, RISES | OFTEN | {"eval/loss": [2.25, 1.5, 1.42, 1.9, 2.4]}),
        (causes.OVERFITTED, RISES | OFTEN | {"eval/loss": [2.25, 2.4, 2.9, 3.4, 4.0]}),
        (causes.OVERFITTED, RISES | OFTEN | {"eval/loss": [2.25, 1.6, 1.8, 2.0, 2.1]}),
        (causes.TOO_LARGE, {"loss/total": towards(2.2, 7.5, 8), "eval/loss": [2.25, 7, 7.4, 7.5, 7.5]}),
        (causes.TOO_LARGE, {"loss/total": late(towards(2.2, 1.4), towards(1.4, 6, 3)),
                            "eval/loss": [2.25, 1.5, 2, 4, 5]}),
        (causes.TOO_LARGE, {"loss/total": late(towards(2.2, 1.4), np.nan)}),
        (causes.SPIKE, {"loss/total": late(towards(2.2, 1.4), 9.0, 0.6), "eval/loss": [2.25, 1.6, 1.5, 8.8, 9.0]}),
        (causes.TOO_SMALL, {"loss/total": 2.2 - 1e-4 * DONE, "eval/loss": [2.25, 2.25, 2.2499, 2.2499, 2.2499]}),
        (causes.ZERO_RATE, {"lr": 0.0, "loss/total": 2.2, "eval/loss": [2.25] * 5}),
        (causes.WRONG_MASK, {"loss/total": towards(0.4, 0.1, 5)}),
        (causes.NO_GRADIENT, {"grad/norm": NONE, "loss/total": 2.2, "eval/loss": [2.25] * 5}),
        (causes.LARGE_GRADIENT, {"grad/norm": 1e6}),
    ]),
    "preferences": (_preferences, [
        (causes.NOISY_LABELS, {"rewards/accuracies": 0.52, "eval/rewards/accuracies": [0.5, 0.51, 0.49, 0.52, 0.5],
                               "loss/total": towards(0.693, 0.66), "eval/loss/total": [0.693, 0.7, 0.7, 0.7, 0.7]}),
        (causes.INVERTED_LABELS, {"eval/rewards/accuracies": [0.5, 0.3, 0.25, 0.2, 0.18],
                                  "eval/loss/total": [0.693, 0.8, 0.9, 1.0, 1.1]}),
        (causes.OVERFITTED, OFTEN | {"rewards/accuracies": towards(0.5, 1.0, 9), "loss/total": towards(0.693, 0.02),
                                     "eval/rewards/accuracies": [0.5, 0.55, 0.52, 0.51, 0.5],
                                     "eval/loss/total": [0.693, 0.8, 1.2, 1.6, 2.0]}),
        (causes.TOO_LARGE, {"logps/chosen": towards(-60, -400, 6)}),
        (causes.TOO_LARGE, {"loss/total": towards(0.693, 3.0, 9), "eval/loss/total": [0.693, 2, 2.5, 3, 3]}),
        (causes.TOO_LARGE, {"loss/total": late(towards(0.693, 0.5), np.nan)}),
        (causes.TOO_SMALL, {"loss/total": 0.693 - 1e-5 * DONE, "eval/loss/total": [0.693] * 4 + [0.69299],
                            "rewards/accuracies": 0.62, "eval/rewards/accuracies": [0.5, 0.62, 0.62, 0.62, 0.62]}),
        (causes.ZERO_RATE, {"lr": 0.0, "loss/total": 0.693, "eval/loss/total": [0.693] * 5}),
        (causes.NO_GRADIENT, {"grad/norm": NONE, "loss/total": 0.693, "eval/loss/total": [0.693] * 5}),
        (causes.LARGE_GRADIENT, {"grad/norm": 2e5}),
        (causes.SKIPPED, {"grad/skipped": (np.arange(STEPS) % 2).astype(float)}),
        (causes.STILL, {"progress/epoch": 0.02 + 0 * DONE}),
    ]),
    "reward models": (_scores, [
        (causes.NOISY_LABELS, {"reward/accuracy": 0.5, "eval/reward/accuracy": [0.5, 0.52, 0.48, 0.5, 0.51],
                               "loss/total": 0.69, "eval/loss": [0.7, 0.7, 0.7, 0.7, 0.7]}),
        (causes.INVERTED_LABELS, {"eval/reward/accuracy": [0.5, 0.32, 0.25, 0.22, 0.2],
                                  "eval/loss": [0.7, 0.9, 1.1, 1.2, 1.3]}),
        (causes.OVERFITTED, OFTEN | {"reward/accuracy": towards(0.5, 1.0, 9), "loss/total": towards(0.72, 0.01),
                                     "eval/reward/accuracy": [0.5, 0.55, 0.53, 0.52, 0.5],
                                     "eval/loss": [0.71, 0.8, 1.3, 1.8, 2.2]}),
        (causes.TOO_LARGE, {"loss/total": towards(0.72, 4.0, 9), "eval/loss": [0.71, 3, 3.5, 4, 4]}),
        (causes.TOO_LARGE, {"reward/mean": towards(0, 40, 6)}),
        (causes.TOO_LARGE, {"loss/total": late(towards(0.72, 0.5), np.nan)}),
        (causes.TOO_LARGE, {"grad/norm": late(2.0, 90.0)}),
        (causes.TOO_SMALL, {"loss/total": 0.72 - 1e-5 * DONE, "eval/loss": [0.71] * 4 + [0.70999],
                            "reward/accuracy": 0.62, "eval/reward/accuracy": [0.62] * 5}),
        (causes.ZERO_RATE, {"lr": 0.0, "loss/total": 0.72, "eval/loss": [0.71] * 5}),
        (causes.NO_GRADIENT, {"grad/norm": NONE, "loss/total": 0.72, "eval/loss": [0.71] * 5}),
        (causes.LARGE_GRADIENT, {"grad/norm": 5e3}),
        (causes.SPIKE, {"loss/total": late(towards(0.72, 0.5), 6.0, 0.7), "eval/loss": [0.71, 0.6, 0.56, 5, 6]}),
    ]),
}  # fmt: skip
GOOD: dict[str, list[Changes]] = {
    "policy": [
        {}, {"reward/mean": towards(0.02, 0.98, 8), "eval/reward/mean": [0.02, 0.8, 0.96, 0.98, 0.98]},
        {"reward/mean": towards(0.25, 0.5, 1), "eval/reward/mean": [0.25, 0.33, 0.4, 0.46, 0.5]},
        {"policy/entropy": towards(0.3, 1.6, 3)}, {"grad/norm": late(0.8, 4.0)},
        {"response/length_mean": towards(60, 300, 3), "response/truncated_fraction": 0.3},
        {"eval/refused": [0.2, 0.18, 0.17, 0.16, 0.15]}, {"kl/mean": 25 * DONE, "eval/time_s": [9, 1, 0.5, 0.2, 0.1]},
    ],
    "supervised": [
        {}, {"loss/total": towards(0.9, 0.7, 2), "eval/loss": [0.92, 0.82, 0.77, 0.74, 0.72]},
        {"loss/total": towards(9.0, 3.0, 8), "eval/loss": [9.1, 4, 3.3, 3.1, 3.05], "grad/norm": towards(40, 1)},
        {"eval/loss": [2.25, 1.6, 1.45, 1.42, 1.46]}, {"lr": towards(2e-5, 0, 3)}, {"grad/norm": 60.0},
        {"lr": 2e-5 * np.minimum(1, 10 * DONE + 0.01)},
        {"loss/total": towards(2.2, 1.3, 4) + 0.1 * (np.arange(STEPS) % 2)},
    ],
    "preferences": [
        {}, {"eval/loss/total": [0.693, 0.6, 0.58, 0.6, 0.63]}, {"rewards/accuracies": towards(0.5, 0.97, 5)},
        {"logps/chosen": towards(-60, -80)}, {"logps/chosen": towards(-300, -330)}, {"grad/norm": 30.0},
        {"lr": towards(5e-6, 0, 3)},
        {"rewards/accuracies": 0.66, "eval/rewards/accuracies": [0.5, 0.6, 0.64, 0.66, 0.65]},
    ],
    "reward models": [
        {}, {"reward/mean": -1.5 * DONE}, {"reward/std": towards(0.2, 3.0)}, {"reward/accuracy": towards(0.5, 0.95, 5)},
        {"eval/loss": [0.71, 0.6, 0.57, 0.58, 0.61]}, {"grad/norm": towards(20, 3)}, {"lr": towards(1e-5, 0, 3)},
        {"reward/accuracy": 0.68, "eval/reward/accuracy": [0.5, 0.62, 0.66, 0.67, 0.66]},
    ],
}  # fmt: skip
NOISE = {"reward/mean": 0.02, "loss/total": 0.02, "policy/entropy": 0.02, "rewards/accuracies": 0.03,
         "reward/accuracy": 0.03}  # fmt: skip
"""Deviation of the values around their course, as a share of their mean; those of a constant metric are equal."""


def _run(name: str, cause: str, metrics: Mapping[str, Any]) -> LabelledRun:
    numbers, found = np.random.default_rng([SEED, *name.encode()]), dict[str, Series]()
    for metric, given in metrics.items():
        values = np.asarray(given, dtype=float) + np.zeros(5 if metric.startswith("eval/") else STEPS)
        steps = np.linspace(0, STEPS, 5).astype(int) if len(values) == 5 else np.arange(1, STEPS + 1)
        if np.nanstd(values) > 0 and cause != causes.TOO_SMALL:
            values = values + numbers.normal(0, NOISE.get(metric, 0) * abs(np.nanmean(values)), len(values))
        found[metric] = Series(steps, values)
    config = {"trainer": {"optimizer": {"lr": float(found["lr"].values.max())}}, "run": {"steps": STEPS}}
    return LabelledRun(
        name=name, scenario="fabricated", seed=SEED, cause=cause, made="fabricated", config=config, metrics=found
    )


def fabricated() -> Sequence[LabelledRun]:
    """Return all of them."""
    bad = [
        _run(f"{kind}-bad-{i}", cause, base() | dict(changes))
        for kind, (base, broken) in BAD.items()
        for i, (cause, changes) in enumerate(broken)
    ]
    good = [
        _run(f"{kind}-good-{i}", "", BAD[kind][0]() | dict(changes))
        for kind, all_changes in GOOD.items()
        for i, changes in enumerate(all_changes)
    ]
    return [*bad, *good]
