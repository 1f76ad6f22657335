"""The memory of sampling: a few tokens are sampled on fake tensors, with caches of their full length."""

from __future__ import annotations

import attrs

from rlcore.config import evolve
from rlcore.sampling import sample
from rlcore.settings import SamplingConfig
from rlcore.training.eval_grid import eval_samplings
from rlcore_plan.batches import prompts
from rlcore_plan.live import LiveBytes
from rlcore_plan.measured_policy import MeasuredPolicy
from rlcore_plan.planned_run import PlannedRun

NUM_EARLY, NUM_LATE = 2, 3
"""Tokens sampled at the start and at the end: a decoder's first step allocates its cache, the next one reuses it."""

UNSEEN = ("gradient_checkpointing", "trunk_cache_gb", "unfrozen_layers")
"""Model options that do not affect the memory of sampling, which needs no gradients."""


@attrs.frozen
class Draw:
    """The memory of one round of sampling, beyond the memory held before the first.

    Attributes:
        name: name of the phase.
        size: number of sequences sampled at once.
        parts: bytes by purpose.
        peak: largest number of bytes of tensors.
        holes: further bytes that malloc keeps of freed tensors.
    """

    name: str
    size: int
    parts: dict[str, int]
    peak: int
    holes: int


@attrs.frozen
class Draws:
    """The memory of sampling in training and in evaluations; `kept` bytes stay allocated in between."""

    phases: tuple[Draw, ...]
    kept: int

    @property
    def at_once(self) -> dict[str, int]:
        """Return the number of sequences sampled at once, by phase."""
        return {each.name: each.size for each in self.phases}


def is_drawn_alike(one: PlannedRun, other: PlannedRun) -> bool:
    """Return whether two runs with the same prompts take the same memory for sampling."""
    (first, work), (second, task) = ((each.settings, each.workload) for each in (one, other))
    models = [{name: value for name, value in each.model.items() if name not in UNSEEN} for each in (first, second)]
    return models[0] == models[1] and (
        (first.gen, first.eval, first.run, work.num_sampled, work.value_head, work.heads)
        == (second.gen, second.eval, second.run, task.num_sampled, task.value_head, task.heads)
    )


def draw(subject: PlannedRun, live: LiveBytes) -> Draws:
    """Measure sampling as in training and as in evaluations; called inside `fake_tensors`."""
    settings, phases, began = subject.settings, [], live.now
    if subject.workload.num_sampled:
        size = subject.share(subject.workload.num_sampled)
        phases.append(_measured(subject, live, "sampling", settings.gen, size, subject.lengths.prompt, began))
    if subject.lengths.eval_prompt:
        samplings = [sampling for _, sampling in eval_samplings(settings.gen, settings.eval.gen)]
        longest = max(samplings, key=lambda sampling: sampling.max_new_tokens)
        known = subject.lengths.num_eval_prompts * settings.eval.samples
        size = subject.share(min(settings.eval.batch_size, known or settings.eval.batch_size))
        phases.append(_measured(subject, live, "evaluation", longest, size, subject.lengths.eval_prompt, began))
    return Draws(tuple(phases), live.now - began)


def _measured(
    subject: PlannedRun, live: LiveBytes, name: str, gen: SamplingConfig, num_prompts: int, length: int, began: int
) -> Draw:
    """Sample the first tokens with a cache for the whole length, then the last tokens, and measure both."""
    size = min(num_prompts, gen.batch_size or num_prompts)
    first, last = (min(number, gen.max_new_tokens) for number in (NUM_EARLY, NUM_LATE))
    few = evolve(gen, max_new_tokens=first, min_new_tokens=0, eos_token_ids=(), stop_sequences=())
    before, waiting = live.restart(), num_prompts - size
    early = MeasuredPolicy(subject.policy, live, before, waiting=waiting, capacity=gen.max_new_tokens)
    sample(early, prompts(subject, size, length, subject.lengths.num_prompts), few)
    peak, taken = live.peak, live.peak + live.holes
    late = MeasuredPolicy(subject.policy, live, before, waiting=waiting if early.joins else 0, is_late=True)
    with live.unreplayed():  # real prompts are shorter
        sample(late, prompts(subject, size, length + gen.max_new_tokens - last), evolve(few, max_new_tokens=last))
    peak = max(peak, live.peak)
    kept = live.now - before  # such as a copy of the weights; it has a line of its own in the bytes held throughout
    cache = max(max(early.cache, late.cache) - kept, 0)
    parts = {"key-value cache": cache, "logits": early.logits, "the rest": peak - before - kept - cache - early.logits}
    return Draw(name, size, parts, peak - began, max(0, taken - peak))
