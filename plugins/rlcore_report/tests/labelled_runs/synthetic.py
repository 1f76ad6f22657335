"""Series of runs that cannot be trained here in seconds, drawn from formulas, and written to runs/ as synthetic.

python synthetic.py
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from labelled import RUNS, write_run

Values = Sequence[float]
ROUNDS, STEPS = 50, 60
"""Rounds of most policies, and steps of most supervised runs."""
Maker = Callable[[np.random.Generator], dict[str, Values]]


def _walk(numbers: np.random.Generator, values: Values, noise: float) -> np.ndarray:
    return np.asarray(values, dtype=float) + numbers.normal(0, noise, len(values))


def _curve(first: float, last: float, count: int, pace: float = 5.0) -> np.ndarray:
    done = np.arange(count) / (count - 1)
    return last + (first - last) * np.exp(-pace * done)


def _policy(numbers: np.random.Generator, count: int = ROUNDS, **changes: Values) -> dict[str, Values]:
    """Return the metrics of a PPO run on long answers in good order, but for the changed ones."""
    kl = np.abs(_walk(numbers, np.linspace(0, 9, count), 0.2))
    kl[0] = 1e-8
    return {
        "reward/mean": _walk(numbers, _curve(0.2, 0.7, count, 3), 0.03),
        "reward/std": _walk(numbers, [0.3] * count, 0.02),
        "reward/max": [1.0] * count, "kl/mean": kl,
        "policy/approx_kl": np.abs(_walk(numbers, [0.004] * count, 0.001)),
        "policy/clip_fraction": np.abs(_walk(numbers, [0.1] * count, 0.02)),
        "policy/ratio_mean": _walk(numbers, [1.0] * count, 0.004),
        "policy/entropy": _walk(numbers, _curve(1.8, 1.1, count, 2), 0.05),
        "response/length_mean": _walk(numbers, np.linspace(90, 110, count), 4),
        "response/truncated_fraction": np.clip(_walk(numbers, [0.1] * count, 0.03), 0, 1),
        "value/explained_variance": _walk(numbers, _curve(-0.3, 0.6, count), 0.05),
        "loss/policy": _walk(numbers, [-0.01] * count, 0.003),
        "loss/total": _walk(numbers, _curve(0.3, 0.1, count), 0.01),
        "grad/norm": np.abs(_walk(numbers, [0.9] * count, 0.1)), "grad/skipped": [0.0] * count,
        "policy/skipped": [0.0] * count, "lr": [1e-5] * count, "progress/epoch": np.linspace(0.05, 4, count), **changes,
    }  # fmt: skip


def _supervised(numbers: np.random.Generator, count: int = STEPS, **changes: Values) -> dict[str, Values]:
    """Return the metrics of supervised fine-tuning of a large model in good order, but for the changed ones."""
    return {
        "loss/total": _walk(numbers, _curve(1.9, 1.55, count), 0.06), "eval/loss": _curve(1.9, 1.6, 5),
        "grad/norm": np.abs(_walk(numbers, _curve(2.0, 1.0, count), 0.15)), "grad/skipped": [0.0] * count,
        "data/tokens": _walk(numbers, [9000] * count, 500), "lr": [2e-5] * count,
        "progress/epoch": np.linspace(0.01, 2, count), **changes,
    }  # fmt: skip


def _kl_explosion(numbers: np.random.Generator) -> dict[str, Values]:
    kl = np.concatenate([[-3e-9], np.geomspace(0.05, 50, 10), _walk(numbers, [50] * 99, 2)])
    length = _walk(numbers, [20] * 110, 1)
    reward = np.concatenate([_curve(0.3, 0.5, 11), _walk(numbers, [0.5] * 99, 0.02)])
    return _policy(numbers, 110, **{"kl/mean": kl, "reward/mean": reward, "response/length_mean": length})


def _not_finite(numbers: np.random.Generator) -> dict[str, Values]:
    metrics = _supervised(numbers)
    loss = np.array(metrics["loss/total"])
    loss[STEPS // 2 :] = math.nan
    return {**metrics, "loss/total": loss}


def _skipped(numbers: np.random.Generator) -> dict[str, Values]:
    skipped = (numbers.random(ROUNDS) < 0.4).astype(float)
    return _policy(numbers, **{"policy/skipped": skipped, "grad/skipped": skipped})


def _no_gradient(numbers: np.random.Generator) -> dict[str, Values]:
    return _supervised(numbers, **{
        "grad/norm": [0.0] * STEPS, "loss/total": _walk(numbers, [1.9] * STEPS, 0.06), "eval/loss": [1.9] * 5,
    })  # fmt: skip


def _clipped(numbers: np.random.Generator) -> dict[str, Values]:
    clip = np.clip(_walk(numbers, _curve(0.3, 0.75, ROUNDS), 0.03), 0, 1)
    kl = np.abs(_walk(numbers, _curve(0.05, 0.6, ROUNDS), 0.03))
    return _policy(numbers, **{"policy/clip_fraction": clip, "policy/approx_kl": kl})


def _two_evaluations(numbers: np.random.Generator) -> dict[str, Values]:
    loss = _walk(numbers, _curve(1.9, 0.4, STEPS), 0.05)
    return _supervised(numbers, **{"loss/total": loss, "eval/loss": [1.9, 2.6]})


def _lost(numbers: np.random.Generator) -> dict[str, Values]:
    reward = np.concatenate([_curve(0.2, 0.7, ROUNDS - 20), np.linspace(0.7, 0.22, 8), [0.22] * 12])
    return _policy(numbers, **{"reward/mean": _walk(numbers, reward, 0.02)})


def _still(numbers: np.random.Generator) -> dict[str, Values]:
    return _policy(numbers, **{"progress/epoch": [0.05] * ROUNDS})


def _easy_groups(numbers: np.random.Generator) -> dict[str, Values]:
    spread = np.clip(_walk(numbers, _curve(0.7, 0.95, ROUNDS), 0.02), 0, 1)
    reward = _walk(numbers, _curve(0.45, 0.5, ROUNDS), 0.02)
    return _policy(numbers, **{"group/zero_spread_fraction": spread, "reward/mean": reward})


def _solved(numbers: np.random.Generator) -> dict[str, Values]:
    reward = np.minimum(_walk(numbers, _curve(0.3, 1.0, ROUNDS, 12), 0.004), 1)
    spread = np.clip(_walk(numbers, _curve(0.1, 0.97, ROUNDS, 12), 0.01), 0, 1)
    return _policy(numbers, **{
        "group/zero_spread_fraction": spread, "reward/mean": reward, "reward/std": _curve(0.4, 0.01, ROUNDS, 12),
        "policy/entropy": _curve(1.2, 0.03, ROUNDS, 9), "value/explained_variance": _walk(numbers, [0.0] * ROUNDS, 0.1),
    })  # fmt: skip


def _rising(numbers: np.random.Generator) -> dict[str, Values]:
    loss = np.concatenate([_curve(1.9, 1.5, STEPS // 2), np.geomspace(1.5, 4, STEPS - STEPS // 2)])
    return _supervised(numbers, **{"loss/total": _walk(numbers, loss, 0.06), "eval/loss": [1.9, 1.55, 1.5, 2.4, 4.0]})


def _solved_before(numbers: np.random.Generator) -> dict[str, Values]:
    return _policy(numbers, **{
        "reward/mean": np.minimum(_walk(numbers, [0.97] * ROUNDS, 0.01), 1), "reward/min": [0.0] * ROUNDS,
        "reward/std": np.abs(_walk(numbers, [0.1] * ROUNDS, 0.01)),
        "group/zero_spread_fraction": np.clip(_walk(numbers, [0.85] * ROUNDS, 0.03), 0, 1),
    })  # fmt: skip


def _long_answers(numbers: np.random.Generator) -> dict[str, Values]:
    return _policy(numbers, **{
        "response/length_mean": _walk(numbers, [500] * ROUNDS, 20), "policy/approx_kl": [1e-6] * ROUNDS,
        "reward/mean": _walk(numbers, _curve(0.3, 0.62, ROUNDS, 2), 0.02), "kl/mean": np.linspace(0, 3, ROUNDS),
    })  # fmt: skip


BROKEN: dict[str, tuple[str, Maker]] = {
    "kl-explosion": ("step too large", _kl_explosion),
    "not-finite": ("step too large", _not_finite),
    "clipped": ("step too large", _clipped),
    "rising-loss": ("step too large", _rising),
    "lost-again": ("step too large", _lost),
    "skipped": ("updates skipped", _skipped),
    "no-gradient": ("no gradient", _no_gradient),
    "two-evaluations": ("overfitting", _two_evaluations),
    "order-stands-still": ("data order", _still),
    "easy-and-hard-groups": ("groups without spread", _easy_groups),
}
GOOD: dict[str, Maker] = {
    "policy": _policy,
    "supervised": _supervised,
    "solved": _solved,
    "solved-before": _solved_before,
    "long-answers": _long_answers,
    "two-good-evaluations": lambda numbers: _supervised(numbers, **{"eval/loss": [1.9, 1.62]}),
    "long": lambda numbers: _policy(numbers, 3 * ROUNDS),
}


def main() -> None:
    """Write every series with two seeds."""
    for seed in (0, 1):
        made = {name: ("", maker) for name, maker in GOOD.items()} | BROKEN
        for name, (cause, maker) in made.items():
            metrics = maker(np.random.default_rng([seed, *name.encode()]))
            count = max(map(len, metrics.values()))
            config = {"trainer": {"optimizer": {"lr": float(metrics["lr"][0])}}, "run": {"steps": count}}
            about = {"scenario": f"synthetic-{name}", "seed": seed, "cause": cause, "made": "synthetic"}
            write_run(RUNS / f"synthetic-{name}-{seed}.jsonl", about, _rows(metrics, count), config)


def _rows(metrics: dict[str, Values], count: int) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl; evaluations are spread over the run from step 0 on."""
    rows: dict[int, dict[str, Any]] = {}
    for name, values in metrics.items():
        is_evaluated = name.startswith("eval/")
        steps = np.linspace(0, count, len(values)).round() if is_evaluated else range(1, len(values) + 1)
        for step, value in zip(steps, values, strict=True):
            rows.setdefault(int(step), {"step": int(step)})[name] = float(value)
    return [rows[step] for step in sorted(rows)]


if __name__ == "__main__":
    main()
