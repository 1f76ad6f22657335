"""Inputs of the sampler: prompts as tokens, token limits and the order of decoding."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from rlcore.errors import DataError
from rlcore.protocols import Policy
from rlcore.settings import DataConfig
from rlcore.types import Prompt
from rlcore_transformers.data.prompts import build_prompts


def as_prompts(policy: Policy, prompts: Sequence[Prompt] | Sequence[str]) -> list[Prompt]:
    """Return prompts unchanged, and tokenise strings with the policy's tokenizer.

    Raises:
        DataError: `prompts` is a single string, or a text has no tokens.
    """
    if isinstance(prompts, str):
        raise DataError(f"prompts = {prompts!r:.80}: give a list, [{prompts!r:.80}] for one prompt")
    ready = [prompt for prompt in prompts if isinstance(prompt, Prompt)]
    if len(ready) == len(prompts):
        return ready
    return build_prompts(iter(prompts), policy.tokenizer, DataConfig(), max_length=0)


def token_limits(prompts: Sequence[Prompt], max_new_tokens: int, max_length: int) -> list[int]:
    """Return the maximum number of new tokens of each prompt.

    Raises:
        DataError: a prompt has no tokens, or fills the context of the policy.
    """
    for i, prompt in enumerate(prompts):
        if not prompt.tokens:
            raise DataError(
                f"prompts[{i}] = {prompt.text!r}: has no tokens, so there is nothing to continue; give at least one "
                "(such as BOS)"
            )
        if max_length and len(prompt.tokens) >= max_length:
            raise DataError(
                f"prompts[{i}] has {len(prompt.tokens)} tokens, which leaves no room for a new one in the policy's "
                f"context of {max_length}: shorten it, or set data.max_prompt_tokens"
            )
    if not max_length:
        return [max_new_tokens] * len(prompts)
    return [min(max_new_tokens, max_length - len(prompt.tokens)) for prompt in prompts]


def decoding_order(prompts: Sequence[Prompt], size: int) -> deque[int]:
    """Return the indices of the prompts in decoding order; `size` prompts are decoded at once, 0 means all.

    Prompts of similar length are decoded together, the longest first, so that the first allocation fits all others.
    """
    indices = range(len(prompts))
    if not size or size >= len(prompts):
        return deque(indices)
    return deque(sorted(indices, key=lambda index: -len(prompts[index].tokens)))
