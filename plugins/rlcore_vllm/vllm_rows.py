"""Requests for the rows of a round, and trajectories from their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from rlcore.logging import get_logger
from rlcore.protocols import Policy
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories, to_device
from rlcore_transformers.sampling.stop_sequences import StopSequences
from rlcore_vllm.generation import Completion, Generated
from rlcore_vllm.rows import stack_rows, stop_end

log = get_logger("vllm")


def completions_of(
    policy: Policy,
    prompts: Sequence[Prompt],
    limits: Sequence[int],
    seeds: Sequence[int | None],
    sampling: SamplingConfig,
    model: str | None,
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> list[Completion]:
    """Return the requests for one continuation of each prompt.

    Args:
        policy: the policy, whose EOS tokens end them by default.
        prompts: B prompts.
        limits: the most new tokens of each.
        seeds: the seed of each, or None for a row that the server draws as it likes.
        sampling: the options of sampling.
        model: name of the model to ask, where a server has several.
        changes: further parameters of sampling.
    """
    eos = policy.eos_token_ids if sampling.eos_token_ids is None else sampling.eos_token_ids
    is_greedy = not sampling.temperature
    return [
        Completion(prompt.tokens, limit, None if is_greedy else seed, sampling, tuple(eos), model, changes)
        for prompt, limit, seed in zip(prompts, limits, seeds, strict=True)
    ]


def cut_end(answer: Generated, asked: Completion, stops: StopSequences | None) -> tuple[Generated, bool]:
    """Cut a completion after the token that completes a stop sequence; return whether it ended before its limit."""
    tokens = answer.tokens
    if (end := stop_end(asked.prompt, tokens, stops)) is not None:
        return answer.cut(end), True
    return answer, len(tokens) < asked.limit or tokens[-1] in asked.eos  # shorter: the server saw a stop sequence


def ends_elsewhere(answer: Generated, asked: Completion, stops: StopSequences | None) -> bool:
    """Return whether a server ended a completion at a stop sequence that its tokens have not; log a warning if so."""
    is_early = len(answer.tokens) < asked.limit and answer.tokens[-1] not in asked.eos
    if not is_early or stop_end(asked.prompt, answer.tokens, stops) is not None:
        return False
    log.warning(
        "a server ended a completion at a stop sequence that is not in the text of its tokens, as the policy's "
        "tokenizer decodes them: its tokenizer is another one, and completions end too early",
        tokens=list(answer.tokens[-8:]), stop_sequences=list(asked.sampling.stop_sequences),
    )  # fmt: skip
    return True


def trajectories_of(
    policy: Policy,
    prompts: Sequence[Prompt],
    rows: Sequence[tuple[Generated, bool]],
    sampling: SamplingConfig,
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> Trajectories:
    """Return prompts and their completions, each with whether it has ended, on the policy's device.

    Where several weights may have sampled a completion, a column `token_versions` (long[B, T]) has the version of the
    policy of each new token.
    """
    is_plain = sampling.is_plain and not changes
    batch = stack_rows(policy, prompts, [answer.tokens for answer, _ in rows], [ended for _, ended in rows])
    if sampling.temperature:
        logprobs = torch.zeros(batch.tokens.shape)
        logprobs[batch.action_mask] = torch.tensor([each for answer, _ in rows for each in answer.logprobs])
        batch = batch.with_columns(**{"logprobs" if is_plain else "sampling_logprobs": logprobs})
    if any(answer.versions for answer, _ in rows):
        versions = torch.zeros(batch.tokens.shape, dtype=torch.long)
        versions[batch.action_mask] = torch.tensor([each for answer, _ in rows for each in answer.versions])
        batch = batch.with_columns(token_versions=versions)
    return batch.each(lambda array: to_device(array, policy.device))
