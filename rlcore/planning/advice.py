"""What to turn down first where a run does not fit: each option changed alone, and the estimate made again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from rlcore.config import merge, parse_overrides
from rlcore.errors import RLCoreError
from rlcore.planning.estimate import Estimate, estimate

FREE = "the same result"
SLOWER = "the same result, slower"
OTHER = "another training"
WORTHWHILE = 0.01
"""Share of what tensors take that a change has to save to be named."""


@attrs.frozen
class Advice:
    """Hold one change of the configuration and what it would save.

    Attributes:
        change: as `rlcore train` takes it.
        saving: bytes off the peak.
        peak: the peak then.
        price: what it costs.
    """

    change: str
    saving: int
    peak: int
    price: str


def advise(values: Mapping[str, Any], where: str, found: Estimate, limit: int) -> list[Advice]:
    """Rank what could be turned down: what changes no result first, and within that what saves most.

    Args:
        values: the configuration.
        where: what it is called.
        found: its estimate.
        limit: bytes there are.
    """
    advice = []
    for change, price in _changes(values, found):
        try:
            then = estimate(merge(values, parse_overrides(change.split())), where, world=found.world)
        except RLCoreError:  # not every trainer or model has every option
            continue
        saving = found.measured.worst.peak - then.measured.worst.peak
        if saving > WORTHWHILE * found.measured.worst.peak:
            advice.append(Advice(change, saving, found.peak - saving, price))
    rank = {FREE: 0, SLOWER: 1, OTHER: 2}
    return sorted(advice, key=lambda each: (rank[each.price], each.peak > limit, -each.saving))


def _changes(values: Mapping[str, Any], found: Estimate) -> list[tuple[str, str]]:
    trainer, model, gen = (values.get(name) or {} for name in ("trainer", "model", "gen"))
    batch, sampled = (-(-size // found.world) for size in (found.workload.batch_size, found.workload.num_sampled))
    micro = trainer.get("micro_batch_size") or batch
    changes = [(f"trainer.micro_batch_size={size}", FREE) for size in (max(1, micro // 4), 1) if size < micro]
    at_once = gen.get("batch_size") or sampled
    if at_once > 1:
        changes.append((f"gen.batch_size={max(1, at_once // 4)}", SLOWER))
    if not model.get("gradient_checkpointing"):
        changes.append(("model.gradient_checkpointing=true", SLOWER))
    changes.append(("trainer.optimizer.name=adafactor trainer.optimizer.betas=null", OTHER))
    changes.append(("run.mixed_precision=bf16", OTHER))
    if model.get("dtype", "float32") == "float32":
        changes.append(("model.dtype=bfloat16", OTHER))
    if found.workload.reference:
        changes.append(("trainer.kl_coef=0", OTHER))
    if model.get("unfrozen_layers") is None and not model.get("peft"):
        changes.append(("model.unfrozen_layers=2", OTHER))
        changes.append(("model.peft.type=lora model.peft.r=8", OTHER))
    return list(dict.fromkeys(changes))
