"""Requests for the rows of a round, and trajectories from their answers.

Also in this file: rows of a round from the answers of a server: seeds, ends, trajectories, and parts that are
reported; tokens of the policy from completions that are text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from rlcore.errors import DataError
from rlcore.logging import get_logger
from rlcore.protocols import Policy
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories, to_device
from rlcore_engines.vllm.connection import EngineError
from rlcore_engines.vllm.generation import Completion, Generated, Text, TextRequest
from rlcore_transformers.data.tokens import decode, encode_continuations
from rlcore_transformers.sampling.record import StopSequences

if TYPE_CHECKING:
    from rlcore.protocols import Tokenizer

CONTEXT = 4
"""Preceding tokens that are decoded with a text, because some tokenizers decode the first token differently."""


def seeds_of(count: int, given: Sequence[int] | None, generator: torch.Generator | None) -> Sequence[int]:
    """Return the seeds of rows: those given, or drawn ones in 0..2^63-2, by torch's default generator if there is none.

    Raises:
        DataError: there is another number of them.
    """
    if given is None:
        device = torch.device("cpu") if generator is None else generator.device
        given = torch.randint(2**63 - 1, (count,), generator=generator, device=device).tolist()
    if len(given) != count:
        raise DataError(f"row_seeds: has {len(given)} seeds for {count} prompts; give one for each prompt")
    return given


def stop_end(prompt: Sequence[int], tokens: Sequence[int], stops: StopSequences | None) -> int | None:
    """Return the number of tokens through the one that completes a stop sequence; None if none is completed."""
    for end in range(1, len(tokens) + 1 if stops is not None else 0):
        if stops is not None and stops.completed([tokens[end - 1]], partial(_window, prompt, tokens[:end], stops.tail)):
            return end
    return None


def _window(prompt: Sequence[int], tokens: Sequence[int], tail: int, _row: int) -> tuple[list[int], list[int]]:
    """Return the last `tail` new tokens, after the CONTEXT tokens that precede them."""
    begin = max(0, len(tokens) - tail)
    return [*prompt[-CONTEXT:], *tokens[:begin]][-CONTEXT:], list(tokens[begin:])


def stack_rows(
    policy: Policy, prompts: Sequence[Prompt], rows: Sequence[Sequence[int]], ended: Sequence[bool]
) -> Trajectories:
    """Return prompts and their completions, on the CPU."""
    pad_id = policy.tokenizer.pad_token_id
    return Trajectories.stack(
        [(*prompt.tokens, *row) for prompt, row in zip(prompts, rows, strict=True)],
        [[False] * len(prompt.tokens) + [True] * len(row) for prompt, row in zip(prompts, rows, strict=True)],
        ended=ended,
        pad_id=pad_id if isinstance(pad_id, int) else 0,
    )


def report_parts(
    rows: Iterable[int],
    batch_of: Callable[[Sequence[int]], Trajectories],
    size: int,
    on_batch: Callable[[list[int], Trajectories], None] | None,
) -> None:
    """Call `on_batch` with every `size` rows that are finished, in the order in which they are, and with the rest.

    Args:
        rows: the indices of rows as they are finished; all are taken, also without `on_batch`.
        batch_of: returns the trajectories of finished rows.
        size: rows of a part.
        on_batch: as `rlcore.protocols.Sampler` describes it.
    """
    finished: list[int] = []
    for row in rows:
        finished.append(row)
        if on_batch is not None and len(finished) >= size:
            on_batch(sorted(finished), batch_of(sorted(finished)))
            finished = []
    if on_batch is not None and finished:
        on_batch(sorted(finished), batch_of(sorted(finished)))


log = get_logger("vllm")


def completions_of(
    policy: Policy,
    prompts: Sequence[Prompt],
    limits: Sequence[int],
    seeds: Sequence[int | None],
    sampling: SamplingConfig,
    model: str | None,
    changes: Mapping[str, object] = MappingProxyType({}),
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
    changes: Mapping[str, object] = MappingProxyType({}),
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


def prompt_texts(tokenizer: Tokenizer, rows: Sequence[Sequence[int]]) -> list[str]:
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
