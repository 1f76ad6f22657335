"""Tokens of the policy from completions that are text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlcore.settings import SamplingConfig
from rlcore.types import Prompt
from rlcore_transformers.data.tokens import decode, encode_continuations
from rlcore_transformers.sampling.stop_sequences import StopSequences
from rlcore_vllm.completions import Text, TextRequest
from rlcore_vllm.errors import EngineError
from rlcore_vllm.rows import stop_end

INCOMPLETE = "\ufffd"
"""What a server returns for a character of which the limit cut off a part."""


class TextRows:
    """Makes rows of tokens from completions.

    A text is tokenised by the policy's tokenizer, unless the server returns the token ids. What ended it and is not
    part of it is appended: the stop sequence or the EOS token that the server states. If it states nothing, that is the
    first stop sequence, or, if there is none, the policy's first EOS token.

    Args:
        tokenizer: the policy's.
        sampling: the options of sampling.
        where: the server, for errors.
        warn: logs a warning once.
    """

    def __init__(self, tokenizer: Any, sampling: SamplingConfig, where: str, warn: Callable[..., None]) -> None:
        self.tokenizer, self.where, self._warn = tokenizer, where, warn
        self._stops = StopSequences(tokenizer, sampling.stop_sequences) if sampling.stop_sequences else None

    def __call__(self, prompt: Prompt, found: Text, asked: TextRequest) -> tuple[Sequence[int], bool]:
        """Return the tokens of a completion, and whether it ended before its limit.

        Raises:
            EngineError: it has no token, or tokens of another vocabulary.
        """
        if found.tokens is not None:
            tokens: Sequence[int] = found.tokens
            self._check_vocabulary(found)
        else:
            self._warn(
                "completions are text, which is tokenised again: their tokens are not exactly those that were sampled",
                advice="if the server returns token ids, as vLLM does, add return_token_ids to sampler.extra",
            )
            tokens = self._retokenised(found, asked)
        if not tokens:
            raise EngineError(f"{self.where}: the completion of {prompt.text[-60:]!r} is empty, and ended at no EOS")
        is_longer, tokens = len(tokens) > asked.limit, tokens[: asked.limit]
        if is_longer:
            self._warn("completions with more tokens than their limit, as the policy's tokenizer counts, are cut")
        ends = [end + 1 for end, token in enumerate(tokens) if token in asked.eos][:1]
        if (stop := stop_end(prompt.tokens, tokens[: ends[0]] if ends else tokens, self._stops)) is not None:
            ends = [stop]
        if ends:
            return tokens[: ends[0]], True
        return tokens, found.is_stopped and not is_longer

    def _retokenised(self, found: Text, asked: TextRequest) -> list[int]:
        text, eos = found.text, list[int]()
        stops = asked.sampling.stop_sequences
        if not found.is_stopped:
            text = text.rstrip(INCOMPLETE)
        elif isinstance(found.reason, str) or (stops and not found.states_reason):
            text += self._missing_stop(found, stops)
        elif asked.eos:
            eos = [found.reason if found.reason in asked.eos else asked.eos[0]]  # type: ignore[list-item]
        name = f"{self.where}: a completion"
        return [*(encode_continuations(self.tokenizer, [text], lambda _: name)[0] if text else ()), *eos]

    def _missing_stop(self, found: Text, stops: Sequence[str]) -> str:
        """Return the stop sequence that ended a completion and that its text lacks."""
        if any(stop in found.text for stop in stops):
            return ""
        if isinstance(found.reason, str):
            return found.reason
        self._warn(
            "the server does not state what ended a completion: the first stop sequence is appended, also where the "
            "model's EOS ended it", stop=stops[0],
        )  # fmt: skip
        return stops[0]

    def _check_vocabulary(self, found: Text) -> None:
        """Refuse token ids that do not decode to the text that came with them."""
        tokens, size = found.tokens or (), len(self.tokenizer)
        known = max(tokens) < size
        (text,) = decode(self.tokenizer, [tokens], skip_special_tokens=False) if known else [""]
        if not known or not _is_within(found.text, text):
            raise EngineError(
                f"{self.where}: the token ids {list(tokens)[:8]} are not those of the text {found.text[:60]!r} in "
                "the policy's tokenizer: the server's model has another one; remove return_token_ids from "
                "sampler.extra, and set sampler.prompts to text"
            )


def prompt_texts(tokenizer: Any, rows: Sequence[Sequence[int]]) -> list[str]:
    """Decode prompts, without a BOS token at the beginning, which servers add to a text."""
    bos = getattr(tokenizer, "bos_token_id", None)
    return decode(
        tokenizer, [row[1:] if len(row) > 1 and row[0] == bos else row for row in rows], skip_special_tokens=False
    )


def _is_within(part: str, whole: str) -> bool:
    """Return whether the characters of `part` occur in `whole` in this order, except spaces and incomplete ones.

    Detokenisers differ in these, in special tokens, and in whether a text includes what ended it.
    """
    left = iter(whole)
    return all(letter in left for letter in part if letter != INCOMPLETE and not letter.isspace())
