"""Decode sampled tokens for reward functions and logs; the decoded text is never tokenised again."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from rlcore.protocols import Tokenizer
from rlcore.types import Prompt, Trajectories


@functools.singledispatch
def decode(tokenizer: Tokenizer, rows: Sequence[Sequence[int]], *, skip_special_tokens: bool) -> list[str]:
    """Decode token ids, without cleaning up spaces; `decode.register` adds a faster way for a class of tokenizers."""
    if not rows:
        return []
    ids = [list(row) for row in rows]
    return list(tokenizer.decode(ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False))


def render_outputs(
    tokenizer: Tokenizer,
    batch: Trajectories,
    prompts: Sequence[Prompt],
    stop_sequences: Sequence[str] = (),
    *,
    alone: bool = False,
) -> list[str]:
    """Return the text that each sequence's chosen tokens add to its prompt, trimmed at the first stop sequence.

    Llama-like tokenizers drop a leading space when they decode a fragment. Prompt and output are therefore decoded
    together and the decoded prompt is removed; if it is no prefix of the whole (a character split between both), the
    output is decoded alone.

    Args:
        tokenizer: the policy's tokenizer.
        batch: B sequences, padded on either side.
        prompts: B prompts, one for each sequence.
        stop_sequences: the text ends before the first occurrence of any of these strings.
        alone: decode outputs without their prompts.

    Raises:
        ValueError: the numbers of prompts and sequences differ.
    """
    outputs = batch.action_tokens
    if alone:
        return [_trim(text, stop_sequences) for text in decode(tokenizer, outputs, skip_special_tokens=True)]
    prompt_tokens = [prompt.tokens for prompt in prompts]
    sequences = [(*prompt, *output) for prompt, output in zip(prompt_tokens, outputs, strict=True)]
    # A batch often contains the same prompt many times.
    distinct = list(dict.fromkeys(prompt_tokens))
    prompt_texts = dict(zip(distinct, decode(tokenizer, distinct, skip_special_tokens=True), strict=True))
    texts = []
    wholes = decode(tokenizer, sequences, skip_special_tokens=True)
    for output, prompt, whole in zip(outputs, prompt_tokens, wholes, strict=True):
        if whole.startswith(prompt_texts[prompt]):
            text = whole[len(prompt_texts[prompt]) :]
        else:
            (text,) = decode(tokenizer, [output], skip_special_tokens=True)
        texts.append(_trim(text, stop_sequences))
    return texts


def _trim(text: str, stop_sequences: Sequence[str]) -> str:
    ends = [index for stop in stop_sequences if stop and (index := text.find(stop)) >= 0]
    return text[: min(ends)] if ends else text
