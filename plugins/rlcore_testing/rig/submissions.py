"""What `submit` and `collect` of a sampler return, compared with its plain call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rlcore.errors import RLCoreError
from rlcore.sampling import derive_seeds
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories
from rlcore_testing.law import require
from rlcore_testing.rig.policies import perturb
from rlcore_testing.rig.sampler_calls import TEXTS, make_policy, make_prompts, require_same
from rlcore_transformers.models.policy import ModelPolicy

SAMPLING = SamplingConfig(max_new_tokens=8)
ORDER = (2, 0, 1)
"""In which rounds are collected that were submitted in their own order."""


def check_submissions(sampler: Any, tolerance: float = 1e-5) -> None:
    """Check a sampler with methods `submit` and `collect` (`rlcore_asynchronous.AsynchronousSampler`).

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
    if not getattr(sampler, "one_version", False):
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


def _rows(sampler: Any, policy: ModelPolicy, prompts: Sequence[Prompt], seeds: Sequence[int]) -> Trajectories:
    generator = torch.Generator().manual_seed(0)
    rows: Trajectories = sampler(policy, prompts, SAMPLING, generator=generator, row_seeds=seeds)
    return rows


def _submit(sampler: Any, policy: ModelPolicy, prompts: Sequence[Prompt], seeds: Sequence[int]) -> Any:
    return sampler.submit(policy, prompts, SAMPLING, generator=torch.Generator().manual_seed(0), row_seeds=seeds)


def _require_spent(sampler: Any, handle: Any) -> None:
    """Require an error if a handle is collected that was collected before."""
    advice = "raise an RLCoreError that says so, since its rows were given away"
    try:
        sampler.collect(handle)
    except RLCoreError:
        return
    except Exception as error:  # noqa: BLE001  reported as the law's finding
        require(False, f"a handle that was collected before: `collect` raised {type(error).__name__}; {advice}")
    require(False, f"a handle that was collected before: `collect` returned rows again; {advice}")
