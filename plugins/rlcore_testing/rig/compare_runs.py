"""Comparison of the metrics and weights that two runs wrote: bit-identical, or equal up to rounding.

Also in this file: batches for laws, and their comparison sequence by sequence, ignoring padding.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from rlcore.checkpoints.state import load_state
from rlcore.types import Trajectories
from rlcore_testing.law import LawBroken, require
from rlcore_testing.rig.runs import Tiny

SHARE = 1e-3
"""Tolerated difference of a weight, as a share of its change during training."""
FLOOR = 1e-7
"""Absolute tolerance: the rounding error of float32 weights of about 1."""
MEASURED = ("time", "eval/time", "perf/")
"""Prefixes of metrics that depend on the machine."""


def check_equal(one: Tiny, other: Tiny, remedy: str, *, checkpoints: bool = False) -> None:
    """Require bit-identical metrics and weights of two runs, apart from time measurements.

    Args:
        one: reference run.
        other: run to compare with it.
        remedy: advice for the message, which names the first difference.
        checkpoints: also compare the newest checkpoints.

    Raises:
        LawBroken: the runs differ; the message names the first difference.
    """
    first = difference(steps(one), steps(other), "step") or difference(weights(one.dir), weights(other.dir), "weights")
    if not first and checkpoints:
        first = difference(checkpoint(one), checkpoint(other), "checkpoint")
    if first:
        raise LawBroken(f"expected bit-identical runs; {first}. {remedy}")


def check_close(one: Tiny, other: Tiny, remedy: str, *, but: str = "") -> None:
    """Require equal losses and weights of two runs up to rounding, relative to the change of each weight.

    A weight whose name ends with `but` may differ.

    Raises:
        LawBroken: the runs differ, or no weight changed.
    """
    start, ours, theirs = weights(one.start), weights(one.dir), weights(other.dir)
    if all(torch.equal(start[name], weight) for name, weight in ours.items() if name in start):
        raise LawBroken(
            f"expected weights to change within {one.steps} steps; none did, so the runs cannot be compared"
        )
    for name, weight in ours.items():
        if name not in start or (but and name.endswith(but)):  # frozen parts, which the exported model contains
            continue
        moved = float((weight - start[name]).abs().mean())
        off = float((weight - theirs[name]).abs().mean())
        if not off <= SHARE * moved + FLOOR:
            raise LawBroken(
                f"expected equal weights up to rounding; {name} is off by {off:.1e} (mean), while training changed it "
                f"by {moved:.1e}. {remedy}"
            )
    for row, (losses, others) in enumerate(zip(_losses(one), _losses(other), strict=True), start=1):
        for name, loss in losses.items():
            if not abs(loss - others.get(name, float("nan"))) <= SHARE * abs(loss) + 1e-5:
                raise LawBroken(
                    f"expected equal losses up to rounding; at step {row} {name} is {loss:.6g} in one run, "
                    f"{others.get(name)} in the other. {remedy}"
                )


def difference(one: object, other: object, where: str) -> str:
    """Describe the first difference of two plain values; empty if they are equal. Tuples count as lists."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape == other.shape and torch.equal(one, other):
            return ""
        largest = float((one.double() - other.double()).abs().max()) if one.shape == other.shape else float("nan")
        return f"{where} differ by at most {largest:.1e}"
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


def _first(differences: Iterable[str]) -> str:
    return next(filter(None, differences), "")


def steps(tiny: Tiny) -> list[dict[str, Any]]:
    """Read the metrics of a run's steps, without time measurements and evaluations."""
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
    """Read all weights that a policy saved in `folder`, or in its subfolder `model`: of one with an adapter, those.

    Raises:
        LawBroken: there are no *.safetensors.
    """
    saved = folder / "model" if (folder / "model").is_dir() else folder
    files = sorted(saved.glob("*.safetensors")) or sorted(saved.glob("*/*.safetensors"))
    if adapter := sorted(saved.glob("adapter/*.safetensors")):  # beside the model with the adapter merged into it
        files = [*adapter, *(file for file in files if not file.stem.startswith("model"))]
    if not files:
        raise LawBroken(f"expected the policy's save_pretrained to write *.safetensors; it wrote {_names(saved)}")
    return {f"{_title(file, saved)}.{name}": weight for file in files for name, weight in load_file(file).items()}


def _title(file: Path, folder: Path) -> str:
    """Return the name of a file of weights, with that of its folder in a model of several parts."""
    inside = file.parent != folder and file.parent.name != "adapter"
    return f"{file.parent.name}.{file.stem}" if inside else file.stem


def checkpoint(tiny: Tiny) -> dict[str, Any]:
    """Read the newest checkpoint: step, trainer state, random state and weights."""
    folder = max((tiny.dir / "checkpoints").glob("[0-9]*"))
    state = load_state(folder / "trainer.safetensors")
    return {
        "step": state["step"], "trainer": state["trainer"], "random numbers": load_state(folder / "rng.safetensors"),
        "weights": weights(folder),
    }  # fmt: skip


def _names(folder: Path) -> str:
    return ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing"


def make_batch(seed: int, *, height: int = 3, width: int = 5, left: bool = False) -> Trajectories:
    """Return a batch of sequences of different lengths with columns [B] and [B, T]; `left` pads on the left."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [max(1, width - i) for i in range(height)]
    tokens = [torch.randint(0, 30, (length,), generator=generator).tolist() for length in lengths]
    batch = Trajectories.stack(
        tokens, [[t > 0 for t in range(length)] for length in lengths], ended=[i % 2 == 0 for i in range(height)]
    )
    if left:
        batch = batch.each(lambda array: array.flip(1) if array.dim() > 1 else array)
    return batch.with_columns(
        values=torch.randn(height, width, generator=generator) * batch.mask,
        scores=torch.randn(height, generator=generator),
    )


def compare(
    expected: Sequence[Trajectories], seen: Trajectories, advice: str, *, what: str = "the taken batch"
) -> None:
    """Require `seen` to hold the sequences of the `expected` batches in their order, ignoring padding."""
    rows = [row for batch in expected for row in _sequences(batch)]
    seen_rows = _sequences(seen)
    require(
        len(seen_rows) == len(rows),
        f"{what} should have {len(rows)} sequences; it has {len(seen_rows)}; {advice}",
    )
    for i, (want, got) in enumerate(zip(rows, seen_rows, strict=True)):
        require(
            want.keys() == got.keys(),
            f"{what}: sequence {i} should have {', '.join(want)}; it has {', '.join(got)}; {advice}",
        )
        for name, array in want.items():
            require(
                array.dtype == got[name].dtype,
                f"{what}: '{name}' should be {array.dtype}; it is {got[name].dtype}; {advice}",
            )
            require(
                _is_same(array, got[name]),
                f"{what}: '{name}' of sequence {i} should be {_short(array)}; it is {_short(got[name])}; {advice}",
            )


def _sequences(batch: Trajectories) -> list[dict[str, Tensor]]:
    """Split a batch into its sequences, without padding."""
    arrays = {"tokens": batch.tokens, "action_mask": batch.action_mask, "ended": batch.ended, **batch.columns}
    return [
        {name: array[i][real] if array.dim() > 1 else array[i] for name, array in arrays.items()}
        for i, real in enumerate(batch.mask)
    ]


def _is_same(expected: Tensor, seen: Tensor) -> bool:
    if expected.shape != seen.shape:
        return False
    return bool(((expected == seen) | ((expected != expected) & (seen != seen))).all())  # noqa: PLR0124  NaN


def _short(array: Tensor) -> str:
    return f"{array.tolist()}"[:120]
