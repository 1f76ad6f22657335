"""Changes of the configuration that save memory: each is applied alone, and the run is estimated again.

Also in this file: an estimate as text or as JSON.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs

from rlcore.config import merge, parse_overrides
from rlcore.errors import RLCoreError
from rlcore.logging import LEVEL
from rlcore_tools.plan.engines import engines_as_json, line, write_engines
from rlcore_tools.plan.estimate import Estimate, estimate
from rlcore_tools.plan.sizes import WHOLE, every_layout, write_size
from rlcore_tools.plan.step_memory import TRUNK

if TYPE_CHECKING:
    from rlcore.types import Options

SAMPLES = {"sampling": "gen.batch_size", "evaluation": "eval.batch_size"}
"""The option that bounds the number of sequences that a phase samples at once."""
FREE = "the same result"
SLOWER = "the same result, slower"
OTHER = "changes the training"
WORTHWHILE = 0.01
"""Share of the peak that a change must save to be listed."""


@attrs.frozen
class Advice:
    """One change of the configuration, and the memory it saves.

    Attributes:
        change: overrides as arguments of `rlcore train`.
        saving: bytes by which the peak falls.
        peak: peak with the change.
        price: the effect on the result or the speed.
    """

    change: str
    saving: int
    peak: int
    price: str


def advise(values: Mapping[str, object], where: str, found: Estimate, limit: int) -> list[Advice]:
    """List changes that save memory: those with the same result first, then slower ones, then changes of the training.

    Within each group, the smallest change that makes the run fit comes first; changes that are not enough follow, the
    largest saving first. Changes of the training are not tried if another change is enough.

    Args:
        values: the configuration.
        where: name of the configuration, for errors.
        found: its estimate.
        limit: bytes of the device.
    """
    advice = _divisions(found)
    for change, price in _changes(values, found):
        if price == OTHER and any(each.peak <= limit for each in advice):
            break
        try:
            with _silence():  # warnings about a changed configuration do not concern the run
                changed = merge(values, parse_overrides(change.split()))
                then = estimate(
                    changed,
                    where,
                    world=found.world,
                    nodes=found.layout.nodes,
                    known=found,
                    device=found.device,
                    memory=0 if found.raw.engines is None else found.raw.engines.memory,
                )
        except RLCoreError:  # not every trainer or model has every option
            continue
        saving = found.measured.worst.taken - _taken(then, found)
        if saving > WORTHWHILE * found.measured.worst.peak:
            advice.append(Advice(change, saving, found.peak - saving, price))
    rank = {FREE: 0, SLOWER: 1, OTHER: 2}
    enough = sorted((each for each in advice if each.peak <= limit), key=lambda each: each.saving)
    not_enough = sorted((each for each in advice if each.peak > limit), key=lambda each: -each.saving)
    return sorted([*enough, *not_enough], key=lambda each: rank[each.price])


def _divisions(found: Estimate) -> list[Advice]:
    """Try every strategy that divides the model, with its parts on the device or in the CPU's memory."""
    if found.world == 1 or found.raw.sizes.refusal or found.subject.settings.run.asynchronous:
        return []
    advice, layout = [], found.layout
    for each in every_layout(layout.nodes, layout.per_node, is_float32=found.raw.sizes.is_float32):
        for offload in (False, True) if each.strategy != WHOLE and found.device != "cpu" else (False,):
            option = attrs.evolve(each, offload=offload)
            saving = found.measured.worst.taken - found.under(option).worst.taken
            if option.strategy != WHOLE and saving > WORTHWHILE * found.measured.worst.peak:
                advice.append(Advice(option.option, saving, found.peak - saving, SLOWER))
    return advice


def _taken(then: Estimate, found: Estimate) -> int:
    """Return the peak of a changed run, assuming that malloc keeps as much in each phase as in the planned run."""
    holes = {phase.name: phase.holes for phase in found.measured.phases}
    return max(phase.peak + holes.get(phase.name, 0) for phase in then.measured.phases)


@contextmanager
def _silence() -> Iterator[None]:
    word, disabled = LEVEL.word, logging.root.manager.disable
    LEVEL.write("critical")
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        LEVEL.write(word)
        logging.disable(disabled)


def _changes(values: Options, found: Estimate) -> Iterator[tuple[str, str]]:
    """Yield changes to try with their price, the cheapest first.

    Only changes that affect the worst phase are tried, because no other lowers the peak.
    """
    trainer, model = (values.get(name) or {} for name in ("trainer", "model"))
    worst = found.measured.worst.name
    micro = trainer.get("micro_batch_size") or found.subject.share(found.workload.batch_size)
    sizes = dict.fromkeys((max(1, micro // 4), 1)) if worst in ("update", "scoring") and micro > 1 else ()
    yield from ((f"trainer.micro_batch_size={size}", FREE) for size in sizes)
    at_once = found.raw.draws.at_once.get(worst, 1)
    if at_once > 1:
        yield f"{SAMPLES[worst]}={max(1, at_once // 4)}", SLOWER
    if found.measured.held[TRUNK]:
        yield "model.trunk_cache_gb=0", SLOWER
    if worst == "update" and not model.get("gradient_checkpointing"):
        yield "model.gradient_checkpointing=true", SLOWER
    if model.get("sampling_dtype"):
        yield "model.sampling_dtype=null", SLOWER
    yield from ((change, OTHER) for change in _other_trainings(model, found))


def _other_trainings(model: Mapping[str, object], found: Estimate) -> Iterator[str]:
    yield "trainer.optimizer.name=adafactor trainer.optimizer.betas=null"
    yield "run.mixed_precision=bf16"
    if model.get("dtype", "float32") == "float32":
        yield "model.dtype=bfloat16"
    if found.workload.reference:
        yield "trainer.kl_coef=0"
    if model.get("unfrozen_layers") is None and not model.get("peft"):
        yield "model.unfrozen_layers=2"
        yield "model.peft.type=lora model.peft.r=8"


SCHEMA = 1
GIVES_BACK = "MALLOC_MMAP_THRESHOLD_=131072"
"""Fixes glibc's mmap threshold (see `rlcore_tools.plan.fake_tensors`), so that freed blocks return to the system."""


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
    found: Estimate, limit: int, advice: Sequence[Advice], further: Mapping[str, object] | None = None
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
