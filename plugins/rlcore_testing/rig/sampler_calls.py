"""Calls of a sampler with small policies, and checks of the sampled tokens against expected frequencies.

Also in this file: what `submit` and `collect` of a sampler return, compared with its plain call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlcore.errors import PluginError, RLCoreError
from rlcore.protocols import SamplerTraits
from rlcore.sampling import derive_seeds, takes
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories
from rlcore_testing.law import Subject, require
from rlcore_testing.rig.policies import PROBE, perturb
from rlcore_testing.rig.reference_transformers import next_logprobs
from rlcore_testing.small import LETTERS, make_gpt2, make_tokenizer
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig
from rlcore_transformers.models.policy import ModelPolicy

if TYPE_CHECKING:
    from rlcore.protocols import Sampler

TEXTS = ("hello", "a", "the cat sat", "b", "zz.", "a", "who is it", "m")
ENDING = tuple(range(20, 31))
"""EOS tokens in some laws: a third of the vocabulary, so that many continuations end early."""
DRAWS = 12_000
RARE = 1e-6
"""p-value of the chi-square test below which frequencies count as wrong."""
TOLERANCE = 1e-4


def draws_from_policy(subject: Subject) -> bool:
    """Return whether it samples from the policy's own distribution (`draws_from_policy` is not False)."""
    try:
        return SamplerTraits(subject.it.target()).draws_from_policy
    except PluginError:  # the_target_imports reports that
        return True


def takes_logit_mask(subject: Subject) -> bool:
    """Return whether it takes `logit_mask`. A run with a logit mask rejects samplers without this parameter."""
    try:
        return takes(make_sampler(subject), "logit_mask")
    except RLCoreError:  # other laws report the error
        return False


def takes_row_seeds(subject: Subject) -> bool:
    """Return whether it takes `row_seeds`. Runs with a sampler without this parameter depend on the number of ranks."""
    try:
        return takes(make_sampler(subject), "row_seeds")
    except RLCoreError:  # other laws report the error
        return False


def closes(subject: Subject) -> bool:
    """Return whether it has a method `close`."""
    try:
        return "close" in SamplerTraits(make_sampler(subject))
    except RLCoreError:  # other laws report the error
        return False


def submits(subject: Subject) -> bool:
    """Return whether it has methods `submit` and `collect` (`rlcore_engines.asynchronous.AsynchronousSampler`)."""
    try:
        sampler = make_sampler(subject)
    except RLCoreError:  # other laws report the error
        return False
    return SamplerTraits(sampler).submit is not None and SamplerTraits(sampler).collect is not None


def make_policy(
    make: Callable[[], PreTrainedModel] = make_gpt2,
    *,
    value_head: bool = False,
    steers: bool = False,
    pad_is_eos: bool = False,
) -> ModelPolicy:
    """Return a policy of a small model with the same weights in every call."""
    model = make()
    torch.manual_seed(1)
    tokenizer = make_tokenizer(pad_is_eos=pad_is_eos)
    return build_causal_lm(
        model, CausalLMConfig(), tokenizer=tokenizer, value_head=value_head or steers, heads=PROBE if steers else None
    )


def make_prompts(texts: Sequence[str]) -> list[Prompt]:
    """Return prompts with one token per letter."""
    return [Prompt(text=text, tokens=tuple(LETTERS.index(letter) for letter in text)) for text in texts]


def draw(
    subject: Subject,
    policy: ModelPolicy,
    prompts: Sequence[Prompt],
    *,
    generator: torch.Generator | int | None = 0,
    row_seeds: Sequence[int] | None = None,
    logit_mask: Tensor | None = None,
    sampler: Any = None,
    **options: Any,
) -> Trajectories:
    """Call the sampler under test, or `sampler`, with the given sampling options and a generator, or its seed.

    It receives a list of its own, so that laws see a sampler that sorts the prompts in place.
    """
    sampler = sampler or make_sampler(subject)
    if isinstance(generator, int):
        generator = torch.Generator().manual_seed(generator)
    sampling = SamplingConfig(**{"max_new_tokens": 8, **options})
    given = {"row_seeds": row_seeds, "logit_mask": logit_mask}
    given = {name: value for name, value in given.items() if value is not None}
    batch: Trajectories = sampler(policy, list(prompts), sampling, generator=generator, **given)
    return batch


def make_sampler(subject: Subject) -> Any:
    """Return the sampler under test: the target, or, if the component has options, the target's return value."""
    target: Any = subject.it.target()
    config = subject.config()
    return target if config is None else target(config)


def softmax(model: PreTrainedModel, prompt: Sequence[int], temperature: float = 1.0) -> Tensor:
    """Return the probabilities of the token after `prompt`: double[V]."""
    return (next_logprobs(model, prompt)[-1] / temperature).softmax(-1)


def check_frequencies(
    subject: Subject,
    weigh: Callable[[PreTrainedModel, Sequence[int]], Tensor],
    *,
    texts: Sequence[str] = ("cat", "o"),
    max_new_tokens: int = 1,
    policy: ModelPolicy | None = None,
    seeds_of: Callable[[int], Sequence[int]] | None = None,
    logit_mask: Tensor | None = None,
    **options: Any,
) -> None:
    """Sample thousands of continuations, from `seeds_of(number)`, and compare their frequencies with `weigh`."""
    prompts = make_prompts(tuple(texts) * DRAWS)
    policy, plain = policy or make_policy(), make_gpt2()
    continuations = draw(
        subject, policy, prompts, max_new_tokens=max_new_tokens, logit_mask=logit_mask,
        row_seeds=None if seeds_of is None else seeds_of(len(prompts)), **options,
    ).action_tokens  # fmt: skip
    for i, prompt in enumerate(prompts[: len(texts)]):
        weights = weigh(plain, prompt.tokens)
        size = len(policy.tokenizer)
        outcomes = [(row + row[-1:] * max_new_tokens)[:max_new_tokens] for row in continuations[i :: len(texts)] if row]
        at = torch.tensor([sum(token * size**k for k, token in enumerate(reversed(row))) for row in outcomes])
        counts = torch.bincount(at, minlength=len(weights)).double()
        what = f"after the prompt {list(prompt.tokens)}, with {options or 'defaults'}"
        forbidden = counts[weights == 0].sum()
        require(not forbidden, f"{what}: {int(forbidden)} of {DRAWS} samples are tokens that are not allowed")
        probability = chi_square_probability(counts, weights / weights.sum())
        worst = int((counts / len(at) - weights / weights.sum()).abs().argmax())
        require(
            probability > RARE,
            f"{what}: frequencies should follow the policy's probabilities; the p-value of the observed ones is "
            f"{probability:.0e} (largest difference: {counts[worst] / len(at):.3f} of the samples instead of "
            f"{weights[worst] / weights.sum():.3f}); sample from the policy's logits, changed only as the sampling "
            "options require",
        )


def chi_square_probability(counts: Tensor, probabilities: Tensor) -> float:
    """Return the p-value of a chi-square test of multinomial counts; cells with fewer than 5 expected are pooled.

    Args:
        counts: double[K].
        probabilities: double[K].

    Source: Pearson 1900.
    """
    expected = probabilities * counts.sum()
    order = expected.argsort(descending=True)
    counts, expected = counts[order], expected[order]
    common = int((expected >= 5).sum())
    if float(expected[common:].sum()) < 5:
        common -= 1  # the pool alone would have fewer than 5 expected
    seen = torch.cat([counts[:common], counts[common:].sum()[None]])
    due = torch.cat([expected[:common], expected[common:].sum()[None]])
    statistic = ((seen - due) ** 2 / due).sum()
    return float(torch.special.gammaincc(torch.tensor(common / 2, dtype=torch.float64), statistic / 2))


def check_column(batch: Trajectories, name: str, expected: Tensor, what: str) -> None:
    """Require a column to equal `expected`, float[B, T], at every action token."""
    actions = batch.action_mask
    off = (batch[name][actions].double() - expected[actions].double()).abs()
    worst = int(off.nan_to_num(float("inf")).argmax())
    require(
        bool((off < TOLERANCE).all()),
        f"{what}, '{name}' of an action token should be {float(expected[actions][worst]):.5f}; it is "
        f"{float(batch[name][actions][worst]):.5f}; record the policy's output for the token, or omit the column",
    )


def require_same(
    seen: Trajectories, expected: Trajectories, tolerance: float, what: str, advice: str = "use the seed of each row"
) -> None:
    """Require the same tokens in the same rows, and the same columns within a tolerance."""
    tokens: Sequence[list[int]] = seen.action_tokens
    wrong = [row for row, pair in enumerate(zip(tokens, expected.action_tokens, strict=False)) if pair[0] != pair[1]]
    require(
        len(tokens) == len(expected) and not wrong,
        f"{what}: there should be the {len(expected)} same sequences; there are {len(tokens)}"
        + "".join(f"; number {row} is {tokens[row]}, not {expected.action_tokens[row]}" for row in wrong[:1])
        + f"; {advice}",
    )
    for name in seen.columns.keys() & expected.columns.keys():
        gap = float((seen[name][seen.action_mask] - expected[name][expected.action_mask]).abs().max())
        require(gap <= tolerance, f"{what}: '{name}' should be the same within {tolerance:g}; it is {gap:.2g} off")


SAMPLING = SamplingConfig(max_new_tokens=8)
ORDER = (2, 0, 1)
"""In which rounds are collected that were submitted in their own order."""


def check_submissions(sampler: Any, tolerance: float = 1e-5) -> None:
    """Check a sampler with methods `submit` and `collect` (`rlcore_engines.asynchronous.AsynchronousSampler`).

    Args:
        sampler: the sampler, which samples the same rows from the same `row_seeds`.
        tolerance: largest difference of a column.

    Raises:
        LawBroken: rows are not those of a plain call, or a handle can be collected twice.
    """
    policy = make_policy()
    rounds = [make_prompts(TEXTS[3 * part :] + TEXTS[: 3 * part]) for part in range(3)]
    seeds = [derive_seeds(part, range(len(TEXTS))) for part in range(3)]
    expected = [_rows(sampler, policy, *each) for each in zip(rounds, seeds, strict=True)]
    handles = [_submit(sampler, policy, *each) for each in zip(rounds, seeds, strict=True)]
    for part in ORDER:
        what = f"submission {part + 1} of 3, collected in the order {[each + 1 for each in ORDER]}"
        advice = "keep prompts, seeds and rows of each submission apart, by its handle"
        require_same(sampler.collect(handles[part]), expected[part], tolerance, what, advice)
    for handle in (handles[0], handles[-1]):
        _require_spent(sampler, handle)
    if not SamplerTraits(sampler).one_version:
        late = _submit(sampler, policy, rounds[0], seeds[0])
        perturb(policy)
        advice = "copy or ship the weights before `submit` returns, or set `one_version = True`"
        what = "a submission that is collected after the policy has changed"
        require_same(sampler.collect(late), expected[0], tolerance, what, advice)
    else:
        perturb(policy)
    handle = _submit(sampler, policy, rounds[0], seeds[0])
    new = _rows(sampler, policy, rounds[0], seeds[0])
    what = "a submission of new weights"
    require_same(sampler.collect(handle), new, tolerance, what, "sample from the weights that `submit` was given")


def _rows(sampler: Sampler, policy: ModelPolicy, prompts: Sequence[Prompt], seeds: Sequence[int]) -> Trajectories:
    generator = torch.Generator().manual_seed(0)
    rows: Trajectories = sampler(policy, prompts, SAMPLING, generator=generator, row_seeds=seeds)
    return rows


def _submit(sampler: Any, policy: ModelPolicy, prompts: Sequence[Prompt], seeds: Sequence[int]) -> object:
    return sampler.submit(policy, prompts, SAMPLING, generator=torch.Generator().manual_seed(0), row_seeds=seeds)


def _require_spent(sampler: Any, handle: object) -> None:
    """Require an error if a handle is collected that was collected before."""
    advice = "raise an RLCoreError that says so, since its rows were given away"
    try:
        sampler.collect(handle)
    except RLCoreError:
        return
    except Exception as error:  # noqa: BLE001  reported as the law's finding
        require(False, f"a handle that was collected before: `collect` raised {type(error).__name__}; {advice}")
    require(False, f"a handle that was collected before: `collect` returned rows again; {advice}")
