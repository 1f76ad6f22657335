"""An estimate as text or as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rlcore_plan.advice import Advice
from rlcore_plan.engine_report import engines_as_json, line, write_engines
from rlcore_plan.estimate import Estimate
from rlcore_plan.layout import WHOLE
from rlcore_plan.sizes import write_size

SCHEMA = 1
GIVES_BACK = "MALLOC_MMAP_THRESHOLD_=131072"
"""Fixes glibc's mmap threshold (see `rlcore_plan.heap`), so that freed blocks return to the system."""


def write_report(found: Estimate, limit: int, limit_from: str, advice: Sequence[Advice]) -> str:
    """Return a text of the estimate, whether the run fits, and the changes that save memory if it does not."""
    measured, worst = found.measured, found.measured.worst
    lines = [
        f"memory of each of {found.world} devices ({found.device}), {found.layout.option}"
        if found.world > 1 or found.layout.strategy != WHOLE
        else f"memory ({found.device})"
    ]
    lines += ["", "held throughout"]
    if found.baseline:
        lines.append(line("interpreter, torch and its kernels (measured here)", found.baseline))
    lines += [line(name, size) for name, size in measured.held.items() if size]
    for phase in measured.phases:
        lines += [
            "",
            f"{phase.name}: {write_size(phase.taken + found.baseline)} at its peak" + " <- the most" * (phase is worst),
        ]
        parts = phase.parts | {"freed tensors that malloc keeps (measured here)": phase.holes}
        lines += [line(name, size) for name, size in parts.items() if size]
    if found.raw.engines is not None:
        lines += ["", *write_engines(found.raw.engines)]
    if measured.host:
        lines += ["", line("in the CPU's memory of each process (run.offload)", measured.host)]
    lines += ["", *(f"{path} = {rate:g}{', which follows the model' * follows}" for path, rate, follows in found.rates)]
    lines += [f"note: {note}" for note in found.notes]
    fits = found.peak <= limit
    lines.append(
        f"{write_size(found.peak)} at the peak, {write_size(limit)} {limit_from}: "
        + ("it fits" if fits else f"{write_size(found.peak - limit)} too much")
    )
    if advice:
        lines += ["", "changes that save memory, each alone:"]
        width = max(len(each.change) for each in advice)
        lines += [
            f"  {each.change:<{width}} saves {write_size(each.saving):>9}, then {write_size(each.peak):>9}"
            f"{' (fits)' if each.peak <= limit else ''}; {each.price}"
            for each in advice
        ]
        if all(each.peak > limit for each in advice):
            lines.append("none of these changes makes the run fit by itself")
    elif not fits and found.baseline <= limit:
        lines.append("no option saves memory here: use a smaller model, shorter sequences or a larger device")
    if not fits and found.holes:
        lines.append(f"{GIVES_BACK} in the environment: up to {write_size(found.holes)} less, and slower")
    if found.baseline > limit:
        lines.append("interpreter, torch and its kernels alone take more memory than the device has")
    return "\n".join(lines)


def report_as_json(
    found: Estimate, limit: int, advice: Sequence[Advice], further: Mapping[str, Any] | None = None
) -> str:
    """Return the report as JSON, sizes in bytes, with further keys."""
    measured = found.measured
    return json.dumps(
        {
            "schema": SCHEMA,
            "device": found.device,
            "world": found.world,
            "strategy": found.layout.strategy,
            "baseline": found.baseline,
            "held": measured.held,
            "phases": [
                {
                    "name": phase.name,
                    "peak": phase.taken + found.baseline,
                    "parts": phase.parts,
                    "kept_by_malloc": phase.holes,
                }
                for phase in measured.phases
            ],
            "kept_by_malloc": found.holes,
            "peak": found.peak,
            "worst": measured.worst.name,
            "limit": limit,
            "fits": found.peak <= limit,
            "learning_rates": {path: {"value": rate, "follows_model": follows} for path, rate, follows in found.rates},
            "notes": list(found.notes),
            **({} if found.raw.engines is None else {"engines": engines_as_json(found.raw.engines)}),
            "advice": [{"change": a.change, "saving": a.saving, "peak": a.peak, "price": a.price} for a in advice],
            **(further or {}),
        },
        indent=2,
    )
