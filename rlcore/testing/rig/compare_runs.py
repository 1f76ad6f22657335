"""Compare what two runs left on disk: to the last bit, or to within rounding."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from rlcore.checkpoints.state import load_state
from rlcore.testing.law import LawBroken
from rlcore.testing.rig.runs import Tiny

SHARE = 1e-3
"""How much of what a weight moved may be rounding."""
FLOOR = 1e-7
"""Rounding there always is: weights are float32 and about 1."""
MEASURED = ("time", "eval/time", "perf/")
"""How metrics begin that tell of the machine, not of what was learned."""


def check_equal(one: Tiny, other: Tiny, remedy: str, *, checkpoints: bool = False) -> None:
    """Require that two runs left the same steps and weights to the last bit, clocks aside.

    Args:
        one: what is right.
        other: what is compared with it.
        remedy: what to do if they differ; where they do is put before it.
        checkpoints: compare what the newest checkpoint holds of the trainer too.

    Raises:
        LawBroken: they differ; the message says where first.
    """
    found = difference(steps(one), steps(other), "step") or difference(weights(one.dir), weights(other.dir), "weights")
    if not found and checkpoints:
        found = difference(_checkpoint(one), _checkpoint(other), "checkpoint")
    if found:
        raise LawBroken(f"expected the same to the last bit; {found}. {remedy}")


def check_close(one: Tiny, other: Tiny, remedy: str) -> None:
    """Require that two runs lost and learned the same but for rounding, weight by weight of what it moved.

    Raises:
        LawBroken: they did not, or nothing was learned; the message says where.
    """
    start, ours, theirs = weights(one.start), weights(one.dir), weights(other.dir)
    if all(torch.equal(start[name], weight) for name, weight in ours.items() if name in start):
        raise LawBroken(f"expected weights that move within {one.steps} steps; none did, so nothing can be compared")
    for name, weight in ours.items():
        moved = float((weight - start[name]).abs().mean())
        off = float((weight - theirs[name]).abs().mean())
        if not off <= SHARE * moved + FLOOR:
            raise LawBroken(
                f"expected the same weights but for rounding; {name} is off by {off:.1e} (mean) where it moved by "
                f"{moved:.1e}. {remedy}"
            )
    for row, (losses, others) in enumerate(zip(_losses(one), _losses(other), strict=True), start=1):
        for name, loss in losses.items():
            if not abs(loss - others.get(name, float("nan"))) <= SHARE * abs(loss) + 1e-5:
                raise LawBroken(
                    f"expected the same losses but for rounding; at step {row} {name} is {loss:.6g} in one, "
                    f"{others.get(name)} in the other. {remedy}"
                )


def difference(one: Any, other: Any, where: str) -> str:
    """Say where two plain values first differ; nothing if they do not. Tuples count as lists."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape == other.shape and torch.equal(one, other):
            return ""
        largest = float((one.double() - other.double()).abs().max()) if one.shape == other.shape else float("nan")
        return f"{where} differ, by {largest:.1e} at most"
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        lacking = [key for key in [*one, *other] if key not in one or key not in other]
        if lacking:
            return f"{where}: only one of them has {lacking[0]!r}"
        return _first(difference(one[key], other[key], f"{where}.{key}") for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            return f"{where}: there are {len(one)} in one, {len(other)} in the other"
        return _first(difference(a, b, f"{where}[{i}]") for i, (a, b) in enumerate(zip(one, other, strict=True)))
    if type(one) is type(other) and (one == other or (one != one and other != other)):  # noqa: PLR0124  nan
        return ""
    return f"{where} differ: {one!r:.60} in one, {other!r:.60} in the other"


def _first(found: Any) -> str:
    return next(filter(None, found), "")


def steps(tiny: Tiny) -> list[dict[str, Any]]:
    """Read the metrics of a run's steps, clocks and evaluations aside."""
    lines = (tiny.dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [
        {name: value for name, value in row.items() if not name.startswith(MEASURED)}
        for row in rows
        if not any(name.startswith("eval/") for name in row)
    ]


def _losses(tiny: Tiny) -> list[dict[str, float]]:
    return [{name: value for name, value in row.items() if name.startswith("loss/")} for row in steps(tiny)]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Read every weight that a policy saved into `folder`, or into its `model`.

    Raises:
        LawBroken: there is none.
    """
    place = folder / "model" if (folder / "model").is_dir() else folder
    files = sorted(place.glob("*.safetensors"))
    if not files:
        raise LawBroken(f"expected the policy's save_pretrained to write *.safetensors; it wrote {_names(place)}")
    return {f"{file.stem}.{name}": weight for file in files for name, weight in load_file(file).items()}


def _checkpoint(tiny: Tiny) -> dict[str, Any]:
    """Read the newest checkpoint: where the trainer was, its random numbers, its weights."""
    folder = max((tiny.dir / "checkpoints").glob("[0-9]*"))
    state = load_state(folder / "trainer.safetensors")
    return {
        "step": state["step"], "trainer": state["trainer"], "random numbers": load_state(folder / "rng.safetensors"),
        "weights": weights(folder),
    }  # fmt: skip


def _names(folder: Path) -> str:
    return ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing"
