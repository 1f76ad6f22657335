"""The memory of passes without gradients: over the rows that a trainer scores, and to check a sampler's weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import torch

from rlcore_plan.batches import checked, learned, pieces, rollouts
from rlcore_plan.layout import WHOLE
from rlcore_plan.live import LiveBytes
from rlcore_plan.model_sizes import find_blocks
from rlcore_plan.planned_run import PlannedRun
from rlcore_plan.step_memory import Passes


def passes_without_gradients(subject: PlannedRun, live: LiveBytes) -> tuple[Passes, Passes]:
    """Measure the passes on whole weights, and those that complete one block of weights at a time.

    Where autocast rounds weights that train, it keeps the 16-bit copies of all until a pass ends, and of one block if
    the weights are freed after each (`rlcore_shard.block_passes`).
    """
    whole = by_block = _measured(subject, live)
    is_divided = subject.world > 1 or subject.settings.run.shard != WHOLE
    if is_divided and subject.ranks.mixed_precision != "no":
        with _freed_by_block(subject):
            by_block = _measured(subject, live)
    return whole, by_block


def _measured(subject: PlannedRun, live: LiveBytes) -> Passes:
    compared = _checking(subject, live)
    return attrs.evolve(_scoring(subject, live), checking=compared)


@contextmanager
def _freed_by_block(subject: PlannedRun) -> Iterator[None]:
    """Free the copies that autocast has made of weights after each block."""

    def after(*_: object) -> None:
        torch.clear_autocast_cache()

    handles = [each.register_forward_hook(after) for each in find_blocks(subject.policy)]
    try:
        yield
    finally:
        for each in handles:
            each.remove()


def _checking(subject: PlannedRun, live: LiveBytes) -> int:
    """Return the bytes of the pass in which log-probs of what samples elsewhere are compared with the policy's."""
    serving = subject.serving
    if serving is None or not serving.checked:
        return 0
    batch = checked(subject, serving.checked, serving.checked_tokens)
    before = live.restart()
    with torch.no_grad():
        subject.policy.score(batch)
    return live.peak - before


def _scoring(subject: PlannedRun, live: LiveBytes) -> Passes:
    """Score rollouts as the trainer does before its updates, if it does."""
    policy, workload, settings = subject.policy, subject.workload, subject.settings
    is_float32 = subject.ranks.mixed_precision == "no" and next(policy.module.parameters()).dtype == torch.float32
    are_reused = (
        settings.gen.reused_logprobs
        and is_float32
        and settings.gen.is_plain
        and settings.model.get("sampling_dtype") is None
        and bool(getattr(subject.chosen.sampler.build(), "exact_logprobs", False))
    )
    if not workload.num_scored or (are_reused and not workload.reference):
        return Passes()
    scored = rollouts(subject, subject.share(workload.num_sampled)) if workload.num_sampled else learned(subject)
    batch = pieces(subject, scored, workload.num_scored)[0]
    before = live.restart()
    with torch.no_grad():
        if workload.reference:
            policy.reference_score(batch)
        reference = live.peak - before
        if not are_reused:
            policy.score(batch, entropy=True)
    return Passes((("scoring", live.peak - before, live.holes),), reference)
