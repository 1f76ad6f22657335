"""Spell sampled tokens out for reward functions and people; training never reads this text back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlcore.data.tokens import decode
from rlcore.types import Prompt, Trajectories

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def render_outputs(
    tokenizer: PreTrainedTokenizerBase,
    batch: Trajectories,
    prompts: Sequence[Prompt],
    stop_sequences: Sequence[str] = (),
    *,
    alone: bool = False,
) -> list[str]:
    """Return the text each sequence's chosen tokens add to its prompt, cut before the first stop sequence in it.

    Tokenizers of Llama's kind lose a leading space when they spell a fragment, so the text is what prompt and output
    spell together, less what the prompt spells; where that is no prefix (a letter cut in two), the output alone.

    Args:
        tokenizer: the policy's.
        batch: B sequences; padding may stand on either side.
        prompts: B prompts, that of each sequence.
        stop_sequences: strings the text ends before, wherever in it they stand.
        alone: spell outputs as texts of their own, whatever their prompts.

    Raises:
        ValueError: there are not as many prompts as sequences.
    """
    outputs = batch.action_tokens
    if alone:
        return [_trim(text, stop_sequences) for text in decode(tokenizer, outputs, skip_special_tokens=True)]
    read = [prompt.tokens for prompt in prompts]
    together = [(*prompt, *output) for prompt, output in zip(read, outputs, strict=True)]
    # A batch often holds the same prompt many times.
    distinct = list(dict.fromkeys(read))
    spelt = dict(zip(distinct, decode(tokenizer, distinct, skip_special_tokens=True), strict=True))
    texts = []
    for output, prompt, whole in zip(outputs, read, decode(tokenizer, together, skip_special_tokens=True), strict=True):
        if whole.startswith(spelt[prompt]):
            text = whole[len(spelt[prompt]) :]
        else:
            (text,) = decode(tokenizer, [output], skip_special_tokens=True)
        texts.append(_trim(text, stop_sequences))
    return texts


def _trim(text: str, stop_sequences: Sequence[str]) -> str:
    found = [at for stop in stop_sequences if stop and (at := text.find(stop)) >= 0]
    return text[: min(found)] if found else text
