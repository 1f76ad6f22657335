"""Go through a step of training on phantoms, phase by phase, and note the most memory that each takes."""

from __future__ import annotations

import attrs
import torch

from rlcore.batching import micro_batches
from rlcore.config import evolve
from rlcore.data.samples import stack_samples
from rlcore.models.trunk import remembering
from rlcore.optim import Updater
from rlcore.order import Order
from rlcore.planning.live import LiveBytes, held, parameters_of
from rlcore.planning.subject import Subject, vocabulary_of
from rlcore.planning.watched import Watched
from rlcore.sampling import sample
from rlcore.settings import SamplingConfig
from rlcore.sweeps import eval_samplings
from rlcore.types import PolicyOutputs, Prompt, Trajectories

NUM_DRAWN = 3
"""Tokens drawn to see what sampling takes: two steps of the decoder, the first of which allocates its cache."""
MANY = 10**6
"""Updates of a run for its schedule, which takes no memory."""
TOKEN_BYTES = 8 + 1 + 1 + 7 * 4
"""What is kept of a token: its id, two masks, and seven columns (log-probs, values, KL, rewards and what follows)."""


@attrs.frozen
class Phase:
    """Hold what one phase takes.

    Attributes:
        name: what the phase is called.
        parts: bytes it adds to what is held throughout, by what they are for.
        peak: bytes at its worst moment, all that is held included.
    """

    name: str
    parts: dict[str, int]
    peak: int


@attrs.frozen
class Measured:
    """Hold what a step of training takes, in bytes.

    Attributes:
        held: what is there throughout, by what it is for.
        phases: in the order they come in.
    """

    held: dict[str, int]
    phases: tuple[Phase, ...]

    @property
    def worst(self) -> Phase:
        """Return the phase with the highest peak."""
        return max(self.phases, key=lambda phase: phase.peak)


def measure(subject: Subject, live: LiveBytes) -> Measured:
    """Go through one step of training; to be called among phantoms."""
    policy = subject.policy
    weights = parameters_of(policy.module)
    trained = [p for p in policy.module.parameters() if p.requires_grad]
    reference = getattr(policy, "reference", None)
    beside = parameters_of(reference) if isinstance(reference, torch.nn.Module) else []
    parts = {
        "parameters that train": held(*trained),
        "parameters that are frozen": held(*weights) - held(*trained),
        "reference": held(*weights, *beside) - held(*weights),
    }
    updated, moments = _update(subject, live, held(*trained) if subject.world > 1 else 0)
    parts["optimizer"] = moments
    if subject.world > 1:
        parts["gradients under way between processes"] = held(*trained)
    longest = subject.lengths.prompt + subject.settings.gen.max_new_tokens
    parts["rollouts"] = subject.workload.num_held * longest * TOKEN_BYTES
    parts["what the frozen layers made of them"] = _remembered(subject, live)
    unseen = parts["rollouts"] + parts["what the frozen layers made of them"]
    before = live.now
    beyond = sum(parts.values()) - before  # what is not among the phantoms
    phases = [*_sampling(subject, live), *_scoring(subject, live)]
    later = [attrs.evolve(phase, peak=phase.peak + beyond) for phase in phases]
    parts["what sampling keeps for the next time"] = live.now - before
    unseen += live.now - before  # the update above came before anything was sampled
    return Measured(parts, (*later, attrs.evolve(updated, peak=updated.peak + unseen)))


def _update(subject: Subject, live: LiveBytes, buckets: int) -> tuple[Phase, int]:
    """Make one optimizer step, of two micro-batches where there are several; return the optimizer's bytes too."""
    policy, workload = subject.policy, subject.workload
    before = live.restart()
    named = subject.optimizers.get(subject.optimizer)
    updater = Updater(policy, subject.optimizer, subject.ranks, total_updates=MANY, optimization=named)
    batch = _learned(subject)
    pieces = _pieces(subject, batch, workload.micro_batch_size)
    largest = max(pieces, key=lambda piece: (int(piece.mask.sum()), piece.tokens.numel()))
    kept = 0
    for _ in pieces[:2]:
        began = live.now
        outputs = policy.score(largest, entropy=workload.entropy)
        kept = live.now - began
        updater.backward(_loss(outputs))
        del outputs
    passes = live.peak - before
    gradients = held(*(p.grad for p in updater.parameters))
    live.restart()
    updater.step()
    moments = live.now - before
    step = live.peak - before - moments
    parts = {"gradients": gradients}
    if passes > step:
        there = min(gradients, passes - kept)  # activations go while gradients come, so not all may be there at once
        parts = {"gradients" if there == gradients else "gradients by then": there}
        parts["activations kept for the backward pass"] = kept
    parts["the rest, such as logits"] = max(passes, step) - sum(parts.values())
    return Phase("update", parts, before + moments + max(passes, step) + buckets), moments


def _pieces(subject: Subject, batch: Trajectories, size: int) -> list[Trajectories]:
    bound = subject.workload.micro_batch_tokens
    return [piece for piece, _ in micro_batches(batch, size, subject.ranks, tokens=bound)]


def _remembered(subject: Subject, live: LiveBytes) -> int:
    """Count the bytes of what a frozen trunk makes of a step's sequences, which is kept until the step is over."""
    num = subject.share(subject.workload.num_held or subject.workload.batch_size)
    batch = _pieces(subject, _learned(subject), 1)[0]
    with remembering(subject.policy), torch.no_grad():
        before = live.now
        subject.policy.score(batch)
        kept = (live.now - before) * num // len(batch)
    room = getattr(subject.chosen.architecture.options, "trunk_cache_gb", 0.0)
    return min(kept, int(room * 1e9))


def _learned(subject: Subject) -> Trajectories:
    """Return one rank's share of the batch of an optimizer step: of rollouts as long as they may be, or of samples."""
    size = subject.share(subject.workload.batch_size)
    if subject.workload.num_sampled:
        return _rollouts(subject, size)
    samples = subject.lengths.samples
    order, batches = Order(len(samples), subject.settings.run.seed), []
    while order.dealt < len(samples):
        dealt = order.take_within_pass(subject.workload.batch_size)
        batches.append([samples[i] for i in dealt[:: subject.world]])
    return stack_samples(max(batches, key=lambda batch: sum(len(each.tokens) for each in batch)))


def _rollouts(subject: Subject, size: int) -> Trajectories:
    """Return sequences as long as they may be, of as many different prompts as the run has, none like another."""
    new, base = subject.settings.gen.max_new_tokens, max(vocabulary_of(subject.policy), 2)
    drawn = torch.randint(base, (size, new), generator=torch.Generator().manual_seed(0)).tolist()
    prompts = [prompt.tokens for prompt in _prompts(subject, size, subject.lengths.prompt, subject.lengths.num_prompts)]
    tokens = [[*prompt, *response] for prompt, response in zip(prompts, drawn, strict=True)]
    return Trajectories.stack(tokens, [[False] * len(prompt) + [True] * new for prompt in prompts])


def _loss(outputs: PolicyOutputs) -> torch.Tensor:
    """Add up all that an algorithm may learn from."""
    given = (outputs.logprobs, outputs.values, outputs.entropy, outputs.q_values, outputs.q_logprobs)
    terms = [array.sum() for array in given if array is not None]
    return torch.stack(terms).sum()


def _scoring(subject: Subject, live: LiveBytes) -> list[Phase]:
    """Score rollouts as the trainer does before it learns from them, where it does."""
    policy, workload, settings = subject.policy, subject.workload, subject.settings
    is_wide = subject.ranks.mixed_precision == "no" and next(policy.module.parameters()).dtype == torch.float32
    is_known = is_wide and settings.gen.is_plain and settings.model.get("sampling_dtype") is None
    if not workload.num_scored or (is_known and not workload.reference):
        return []
    batch = _pieces(subject, _rollouts(subject, subject.share(workload.num_sampled)), workload.num_scored)[0]
    before = live.restart()
    with torch.no_grad():
        if workload.reference:
            policy.reference_score(batch)
        if not is_known:
            policy.score(batch, entropy=True)
    return [Phase("scoring", {"one pass": live.peak - before}, live.peak)]


def _sampling(subject: Subject, live: LiveBytes) -> list[Phase]:
    """Sample as in training, and as in evaluations."""
    settings, phases = subject.settings, []
    if subject.workload.num_sampled:
        size = subject.share(subject.workload.num_sampled)
        phases.append(_sampled(subject, live, "sampling", settings.gen, size, subject.lengths.prompt))
    if subject.lengths.eval_prompt:
        samplings = [sampling for _, sampling in eval_samplings(settings.gen, settings.eval.gen)]
        longest = max(samplings, key=lambda sampling: sampling.max_new_tokens)
        known = subject.lengths.num_eval_prompts * settings.eval.samples
        size = subject.share(min(settings.eval.batch_size, known or settings.eval.batch_size))
        phases.append(_sampled(subject, live, "evaluation", longest, size, subject.lengths.eval_prompt))
    return phases


def _sampled(subject: Subject, live: LiveBytes, name: str, gen: SamplingConfig, num_prompts: int, length: int) -> Phase:
    """Draw the first tokens, with a cache of its full size, then the last ones."""
    size = min(num_prompts, gen.batch_size or num_prompts)
    drawn = min(NUM_DRAWN, gen.max_new_tokens)
    few = evolve(gen, max_new_tokens=drawn, min_new_tokens=0, eos_token_ids=(), stop_sequences=())
    before = live.restart()
    early = Watched(subject.policy, live, before, capacity=gen.max_new_tokens)
    sample(early, _prompts(subject, size, length, subject.lengths.num_prompts), few)
    peak = live.peak
    late = Watched(subject.policy, live, before, is_late=True)
    sample(late, _prompts(subject, size, length + gen.max_new_tokens - drawn), few)
    peak = max(peak, live.peak)
    kept = live.now - before  # a copy of the weights, buffers: theirs is a line of what is held throughout
    cache = max(max(early.cache, late.cache) - kept, 0)
    parts = {"key-value cache": cache, "logits": early.logits, "the rest": peak - before - kept - cache - early.logits}
    return Phase(name, parts, peak)


def _prompts(subject: Subject, size: int, length: int, different: int = 0) -> list[Prompt]:
    """Make prompts of one length, so many different ones, or all."""
    base, prompts = max(vocabulary_of(subject.policy), 2), []
    for i in range(size):
        number, tokens = i % (different or size), [0] * max(length, 1)
        for place in range(len(tokens)):
            number, tokens[place] = divmod(number, base)
        prompts.append(Prompt("", tuple(tokens)))
    return prompts
