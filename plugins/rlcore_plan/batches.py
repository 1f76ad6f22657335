"""The batches of the planned run: of its samples, or of prompts and rollouts of the maximum length."""

from __future__ import annotations

import torch

from rlcore.training import Order, micro_batches, stack_samples
from rlcore.types import Prompt, Trajectories
from rlcore_plan.planned_run import PlannedRun, vocabulary_of


def pieces(subject: PlannedRun, batch: Trajectories, size: int) -> list[Trajectories]:
    """Cut a batch into micro-batches as the run does."""
    workload = subject.workload
    bound, group = workload.micro_batch_tokens, workload.group
    return [piece for piece, _ in micro_batches(batch, size, subject.ranks, tokens=bound, group=group)]


def learned(subject: PlannedRun) -> Trajectories:
    """Return one rank's batch of an optimizer step: rollouts of the maximum length, or samples."""
    group, size = subject.workload.group, subject.workload.batch_size
    if subject.workload.num_sampled:
        return rollouts(subject, subject.share(size // group) * group)
    samples = subject.lengths.samples
    count = len(samples) // group
    order, batches = Order(count, subject.settings.run.seed), []
    while order.position < count:
        indices = order.take_within_pass(max(size // group, 1))[:: subject.world]
        batches.append([sample for i in indices for sample in samples[i * group : (i + 1) * group]])
    return stack_samples(max(batches, key=lambda batch: sum(len(each.tokens) for each in batch)))


def rollouts(subject: PlannedRun, size: int) -> Trajectories:
    """Return different sequences of the maximum length, with as many distinct prompts as the run has."""
    new, base = subject.settings.gen.max_new_tokens, max(vocabulary_of(subject.policy), 2)
    responses = torch.randint(base, (size, new), generator=torch.Generator().manual_seed(0)).tolist()
    made = prompts(subject, size, subject.lengths.prompt, subject.lengths.num_prompts)
    tokens = [[*prompt.tokens, *response] for prompt, response in zip(made, responses, strict=True)]
    return Trajectories.stack(tokens, [[False] * len(prompt.tokens) + [True] * new for prompt in made])


def checked(subject: PlannedRun, rows: int, new: int) -> Trajectories:
    """Return continuations of `new` tokens of prompts of the maximum length."""
    made = prompts(subject, rows, subject.lengths.prompt + new)
    masks = [[i >= len(each.tokens) - new for i in range(len(each.tokens))] for each in made]
    return Trajectories.stack([list(each.tokens) for each in made], masks)


def prompts(subject: PlannedRun, size: int, length: int, different: int = 0) -> list[Prompt]:
    """Return `size` prompts of one length, of which `different` are distinct; all are if it is 0."""
    base, made = max(vocabulary_of(subject.policy), 2), []
    for i in range(size):
        number, tokens = i % (different or size), [0] * max(length, 1)
        for place in range(len(tokens)):
            number, tokens[place] = divmod(number, base)
        made.append(Prompt("", tuple(tokens)))
    return made
