"""Rounds of a real vLLM on the CPU that are submitted, and go on with new weights: `make test-engines`."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from test_engine import make_policy, tiny_gpt2, tiny_qwen3

from rlcore.settings import SamplingConfig
from rlcore.types import Prompt
from rlcore_engines.vllm.config import VLLMConfig
from rlcore_engines.vllm.vllm_sampler import VLLMSampler
from rlcore_testing.rig.policies import perturb

pytestmark = pytest.mark.engine

LONG = SamplingConfig(max_new_tokens=56, eos_token_ids=())
ROWS = [Prompt("", (row % 20, row % 7, row % 11)) for row in range(192)]


@pytest.mark.parametrize("make", [tiny_gpt2, tiny_qwen3])
def test_each_token_of_a_continued_response_is_sampled_from_the_weights_of_its_version(
    make: Any, engine: dict[str, Any], tmp_path: Path
) -> None:
    """The states of earlier tokens are those of the new weights, too: log-probs are those of a whole new pass."""
    config = VLLMConfig(weights_dir=str(tmp_path), continue_responses=True, **engine)
    policy, sampler = make_policy(make), VLLMSampler(config)
    try:
        sampler(policy, ROWS[:4], LONG, row_seeds=range(4))  # the first request of a server takes long
        versions, handles = {policy.version: copy.deepcopy(policy)}, []
        for part in range(3):
            handles.append(sampler.submit(policy, ROWS, LONG, row_seeds=range(1000 * part, 1000 * part + len(ROWS))))
            perturb(policy)
            versions[policy.version] = copy.deepcopy(policy)
        batches = [sampler.collect(handle) for handle in handles]
    finally:
        sampler.close()
    numbers = sorted(versions)
    for part, batch in enumerate(batches):
        used, mask = batch["token_versions"], batch.action_mask
        assert used[mask].min() >= numbers[part]
        with torch.no_grad():
            own = {number: versions[number].score(batch).logprobs for number in numbers}
        expected = sum(torch.where(used == number, scores, 0.0) for number, scores in own.items())
        gap = float((expected - batch["logprobs"])[mask].abs().max())
        continued = float((used.amax(-1) > numbers[part]).float().mean())
        print(f"{make.__name__}, round {part}: {continued:.2f} of the rows continued, gap {gap:.1e}", file=sys.stderr)
        assert gap < 3e-5  # rounding in float32 over 59 tokens
        assert continued > 0.5 or part == 2
