"""Laws of samplers whose workers are other processes; part of `rlcore_testing.laws.samplers`.

They apply to samplers that a test describes (`remotes`): what a worker does wrong must not change what is sampled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from rlcore.sampling import derive_seeds, sample, takes
from rlcore.settings import SamplingConfig
from rlcore.types import Trajectories
from rlcore_testing.law import Subject, law, require
from rlcore_testing.recorded import Fault, Remote
from rlcore_testing.rig.policies import perturb, saved
from rlcore_testing.rig.sampler_calls import (
    ENDING,
    TEXTS,
    draw,
    make_policy,
    make_prompts,
    make_sampler,
    require_same,
)  # fmt: skip
from rlcore_testing.small import make_gpt2, make_llama
from rlcore_transformers.models.policy import ModelPolicy

if TYPE_CHECKING:
    from rlcore.protocols import Sampler

SAMPLERS = "samplers"
PROMPTS = make_prompts(TEXTS * 3)
SEEDS = derive_seeds(3, range(len(PROMPTS)))
NUM_UPDATES = 3
TRIED: tuple[dict[str, Any], ...] = ({"temperature": 0.8}, {"top_k": 6, "top_p": 0.9}, {"temperature": 0.0})


def is_remote(subject: Subject) -> bool:
    """Return whether its test describes its workers (`remotes`)."""
    return subject.it.name in subject.remotes


def draws_by_seeds(subject: Subject) -> bool:
    """Return whether its workers draw tokens by the seeds of rows, as its test says (`remotes`)."""
    return is_remote(subject) and subject.remotes[subject.it.name].draws_by_seeds


def _can(fault: Fault) -> Callable[[Subject], bool]:
    def can(subject: Subject) -> bool:
        return is_remote(subject) and fault in subject.remotes[subject.it.name].faults

    can.__doc__ = f"Return whether its test can let an answer be `{fault}` (`remotes`)."
    return can


@law(SAMPLERS, when=draws_by_seeds)
def workers_sample_what_one_process_does(subject: Subject) -> None:
    """With the same `row_seeds`, tokens equal those of the sampler `default`, and columns within the tolerance.

    This holds for GPT-2 and Llama, with a temperature, with `top_k` and `top_p`, and for greedy sampling.
    """
    for make in (make_gpt2, make_llama):
        policy = make_policy(make)
        for options in TRIED:
            seen = draw(subject, policy, PROMPTS, row_seeds=SEEDS, eos_token_ids=ENDING, **options)
            sampling = SamplingConfig(max_new_tokens=8, eos_token_ids=ENDING, **options)
            expected = sample(policy, PROMPTS, sampling, row_seeds=SEEDS)
            what = f"with {options} and the same row_seeds"
            require_same(seen, expected, _remote(subject).tolerance, f"{what}, as the sampler default")


@law(SAMPLERS, when=is_remote)
def workers_follow_every_update(subject: Subject) -> None:
    """After each of several updates, and after a load, sampled log-probs are the policy's within the tolerance.

    Greedy continuations, which every sampler has, are those of the sampler `default`.
    """
    policy, sampler = make_policy(), make_sampler(subject)
    with saved(policy) as start:
        for update in range(NUM_UPDATES):
            _require_fresh(subject, policy, sampler, f"after {update} updates")
            perturb(policy)
        policy.load_pretrained(start)
        _require_fresh(subject, policy, sampler, "after a load")


def _require_fresh(subject: Subject, policy: ModelPolicy, sampler: object, when: str) -> None:
    advice = "give workers the new weights whenever `policy.version` has changed, all of them, tied heads included"
    batch = draw(subject, policy, PROMPTS, sampler=sampler, row_seeds=SEEDS)
    if "logprobs" in batch:
        with torch.no_grad():
            own = policy.score(batch).logprobs
        gap = float((own - batch["logprobs"])[batch.action_mask].abs().max())
        require(
            gap <= _remote(subject).tolerance,
            f"{when}, log-probs should be the policy's within {_remote(subject).tolerance:g}; the largest difference "
            f"is {gap:.2g}; {advice}",
        )
    greedy = draw(subject, policy, PROMPTS, sampler=sampler, temperature=0.0).action_tokens
    expected = sample(policy, PROMPTS, SamplingConfig(max_new_tokens=8, temperature=0.0)).action_tokens
    wrong = next((row for row, pair in enumerate(zip(greedy, expected, strict=True)) if pair[0] != pair[1]), 0)
    require(
        greedy == expected,
        f"{when}, the greedy continuation {wrong} should be {expected[wrong]}; it is {greedy[wrong]}; {advice}",
    )


@law(SAMPLERS, when=_can("dies"))
def a_worker_that_dies_changes_nothing(subject: Subject) -> None:
    """If a worker ends before it answers, its prompts are sampled again, and the round is the same."""
    _require_undisturbed(
        subject, "dies", "ask another worker, or the one that replaces it, for the same rows and seeds"
    )


@law(SAMPLERS, when=_can("late"))
def an_answer_that_comes_late_changes_nothing(subject: Subject) -> None:
    """If an answer comes late, each row is there once, and the round is the same."""
    _require_undisturbed(subject, "late", "keep the first answer for a row, whichever worker it comes from")


@law(SAMPLERS, when=_can("twice"))
def an_answer_that_comes_twice_counts_once(subject: Subject) -> None:
    """If an answer comes twice, each row is there once, and the round is the same."""
    _require_undisturbed(subject, "twice", "keep the first answer for a row, and drop what comes after it")


def _require_undisturbed(subject: Subject, fault: Fault, advice: str) -> None:
    """Require a round, and the one after it, to be the same with a fault as without."""
    policy, sampler = make_policy(), make_sampler(subject)
    calm = _reported(policy, sampler)
    _remote(subject).disturb(fault, sampler)
    for round_ in ("the round", "the round after it"):
        what = f"{round_} in which an answer was '{fault}', compared with one without"
        seen, rows = _reported(policy, sampler)
        require_same(seen, calm[0], _remote(subject).tolerance, what, advice)
        require(
            sorted(rows) == sorted(calm[1]),
            f"{what}: `on_batch` should be called with each row once; it was with {sorted(rows)}; {advice}",
        )


def _reported(policy: ModelPolicy, sampler: Sampler) -> tuple[Trajectories, list[int]]:
    """Return a round and the rows that were reported; no rows if the sampler reports none."""
    rows: list[int] = []
    options: dict[str, Any] = {"row_seeds": SEEDS} if takes(sampler, "row_seeds") else {}
    if takes(sampler, "on_batch"):
        options["on_batch"] = lambda indices, _: rows.extend(indices)
    sampling = SamplingConfig(max_new_tokens=8, batch_size=5)
    batch = sampler(policy, PROMPTS, sampling, generator=torch.Generator().manual_seed(0), **options)
    return batch, rows


def _remote(subject: Subject) -> Remote:
    return subject.remotes[subject.it.name]
