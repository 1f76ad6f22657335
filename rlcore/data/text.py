"""Decode sampled tokens for reward functions and logs; the decoded text is never tokenised again.

Also in this file: check tokenised rows: how many were truncated, whether they fit an encoder-decoder, and which token
ends them.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rlcore.errors import DataError
from rlcore.logging import get_logger
from rlcore.protocols import Tokenizer
from rlcore.types import Prompt, Trajectories, sequences_of


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


REASONS = {
    "truncated_prompts": "prompts longer than data.max_prompt_tokens are truncated",
    "truncated": "rows longer than data.max_sample_tokens or the model's context are truncated at the end",
    "left_out": "rows from which nothing can be learned are left out",
}


def count_truncated(rows: Sequence[object]) -> dict[str, int]:
    """Return how many training rows have a truncated prompt, and how many are truncated on the right."""
    found = [sequences_of(row) for row in rows]
    return {
        "truncated_prompts": sum(not all(sample.has_whole_prompt for sample in samples) for samples in found),
        "truncated": sum(not all(sample.ended for sample in samples) for samples in found),
    }


def warn_of_counts(counts: Mapping[str, int], what: str, *, read: int) -> None:
    """Log a warning that states what happened to rows, and to how many.

    Args:
        counts: numbers of rows, by the names of `REASONS`; nothing is logged if all are 0.
        what: the option that holds the rows.
        read: number of all rows.
    """
    seen = {name: count for name, count in counts.items() if count}
    if seen:
        get_logger("data").warning(f"{what}: {'; '.join(REASONS[name] for name in seen)}", **seen, read=read)


def warn_of_ends(rows: Sequence[object], ends: Collection[int], tokenizer: object, what: str) -> None:
    """Log a warning if most training rows end with a token at which sampling does not stop.

    Rows that are truncated, and those without a chosen token, do not count.

    Args:
        rows: tokenised training rows.
        ends: tokens at which sampling stops.
        tokenizer: the policy's tokenizer.
        what: the option that holds the rows.
    """
    samples = [each for row in rows for each in sequences_of(row) if each.ended and True in each.action_mask]
    last = [each.tokens[len(each.tokens) - 1 - each.action_mask[::-1].index(True)] for each in samples]
    wrong = Counter(token for token in last if token not in ends)
    if wrong.total() * 2 > len(last):
        ((token, _),) = wrong.most_common(1)
        warn_of_end(token, tokenizer, what, rows=wrong.total(), of=len(last))


def warn_of_end(token: int, tokenizer: Any, what: str, **counts: int) -> None:
    """Log a warning that names a token that ends turns, at which sampling does not stop, and the option for it."""
    (text,), (shown,) = (decode(tokenizer, [[token]], skip_special_tokens=skips) for skips in (False, True))
    remedy = (
        f"set model.tokenizer.eos_token to {text!r}, or add {token} to gen.eos_token_ids"
        if not shown  # a special token
        else "a chat template ends turns with a token, which is inside {% generation %} if it marks them; token ids "
        "and templates without one end with EOS"
    )
    get_logger("data").warning(
        f"{what}: trained turns end with {text!r}, at which sampling does not stop: {remedy}", token=token, **counts
    )


def check_parts(rows: Sequence[object], *, max_prompt: int, max_output: int, what: str) -> None:
    """Check that prompts fit an encoder, and everything from the first chosen token on its decoder.

    Args:
        rows: tokenised training rows.
        max_prompt: tokens that the encoder takes; 0 if it takes any number.
        max_output: likewise for the decoder.
        what: the option that holds the rows, for errors.

    Raises:
        DataError: a row does not fit.
    """
    for i, row in enumerate(rows):
        for sample in sequences_of(row):
            start = sample.action_mask.index(True) if True in sample.action_mask else 0
            if 0 < max_prompt < start:
                raise DataError(
                    f"{what}[{i}]: its prompt has {start} tokens, and the model's encoder takes {max_prompt}; shorten "
                    f"it, or set data.max_prompt_tokens to at most {max_prompt} to truncate prompts"
                )
            if start and 0 < max_output < len(sample.tokens) - start:
                raise DataError(
                    f"{what}[{i}]: has {len(sample.tokens) - start} tokens from its first output on, and the model's "
                    f"decoder takes {max_output}; shorten it, or set data.max_sample_tokens to truncate samples on the "
                    "right"
                )
