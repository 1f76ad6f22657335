"""Record of the sampled tokens and their columns, and its conversion to trajectories.

Also in this file: state of the sequences that are decoded together: their lengths, limits and newest tokens; ids of
the tokens that options of samplers name, checked against a tokenizer and a vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs
import torch
from torch import Tensor

from rlcore.errors import ConfigError
from rlcore.types import Prompt, Trajectories, tensor_on
from rlcore_transformers.data.tokens import decode, encode_continuations
from rlcore_transformers.sampling.token_options import Token, TokenOptions

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


SETTLE_EVERY = 64
"""Number of decoding steps buffered before they are written to the record in one indexing call."""


class SampledTokens(NamedTuple):
    """Sampled tokens of K sequences at one decoding step.

    Attributes:
        tokens: long[K].
        columns: float[K] each, values of the tokens for the trajectories' columns, such as `logprobs`.
    """

    tokens: Tensor
    columns: Mapping[str, Tensor]


class _StepTokens(NamedTuple):
    """Arguments of one buffered call of `Record.write`."""

    rows: Tensor
    live: Tensor
    at: Tensor
    tokens: Tensor
    columns: Mapping[str, Tensor]


class Record:
    """Continuations of N prompts, in the order of the prompts, independent of the decoding order.

    Args:
        num_prompts: N.
        num_tokens: M, maximum number of tokens of a continuation.
        device: the policy's device.
        names: columns that exist even if nothing is written to them.
    """

    def __init__(self, num_prompts: int, num_tokens: int, device: torch.device, names: Sequence[str]) -> None:
        self._shape, self._device = (num_prompts, num_tokens), device
        self._tokens = torch.zeros(self._shape, dtype=torch.long, device=device)
        self._ended = torch.zeros(num_prompts, dtype=torch.bool, device=device)
        self._real = torch.zeros(self._shape, dtype=torch.bool, device=device)
        self._unsettled: list[_StepTokens] = []
        self._endings: list[tuple[Tensor, Tensor]] = []
        self._columns: dict[str, Tensor] = {}
        for name in names:
            self._column(name)

    def write(self, rows: Tensor, live: Tensor, at: Tensor, sampled: SampledTokens) -> None:
        """Write tokens number `at` of the prompts at `rows`, long[K] each; only `live` tokens, bool[K], are kept."""
        if self._unsettled and self._unsettled[0].columns.keys() != sampled.columns.keys():
            self._settle()
        # A copy, because a decoder may write the next step's outputs to the same memory.
        columns = {name: column.to(torch.float32, copy=True) for name, column in sampled.columns.items()}
        self._unsettled.append(_StepTokens(rows, live, at, sampled.tokens, columns))
        if len(self._unsettled) == SETTLE_EVERY:
            self._settle()

    def end(self, rows: Tensor, ended: Tensor) -> None:
        """Mark the prompts at `rows`, long[K], that ended with their newest token: bool[K]."""
        self._endings.append((rows, ended))

    @property
    def num_tokens(self) -> int:
        """Return the maximum number of tokens of a continuation."""
        return self._shape[1]

    def chosen(self, row: int, begin: int, end: int) -> list[int]:
        """Return the chosen tokens `begin` to `end` (exclusive) of the prompt at `row`."""
        self._settle()
        tokens: list[int] = self._tokens[row, begin:end].tolist()
        return tokens

    def _settle(self) -> None:
        """Write all buffered steps to the record, in one indexing call per tensor, because small calls are slow."""
        if self._endings:
            rows, ended = (torch.cat(each) for each in zip(*self._endings, strict=True))
            self._ended.index_put_((rows,), ended, accumulate=True)
            self._endings.clear()
        if self._unsettled:
            steps, self._unsettled = self._unsettled, []
            rows, at = torch.cat([step.rows for step in steps]), torch.cat([step.at for step in steps])
            self._tokens[rows, at] = torch.cat([step.tokens for step in steps])
            self._real[rows, at] = torch.cat([step.live for step in steps])
            for name in steps[0].columns:
                self._column(name)[rows, at] = torch.cat([step.columns[name] for step in steps])

    def _column(self, name: str) -> Tensor:
        if name not in self._columns:
            self._columns[name] = torch.zeros(self._shape, device=self._device)
        return self._columns[name]

    def trajectories(self, prompts: Sequence[Prompt], pad_id: int, rows: Tensor | None = None) -> Trajectories:
        """Return trajectories of prompts and their continuations.

        Args:
            prompts: K prompts, those at `rows`.
            pad_id: pads shorter sequences on the right.
            rows: long[K], indices of the prompts; all N by default.
        """
        self._settle()
        chosen, real, ended, drawn = self._tokens, self._real, self._ended, self._columns
        if rows is not None:
            chosen, real, ended = chosen[rows], real[rows], ended[rows]
            drawn = {name: column[rows] for name, column in drawn.items()}
        before = torch.tensor([len(prompt.tokens) for prompt in prompts], dtype=torch.long, device=self._device)[
            :, None
        ]
        after = before + real.sum(1, keepdim=True)
        columns = torch.arange(int(after.max()) if len(prompts) else 0, device=self._device)[None]
        mask, action_mask = columns < after, (columns >= before) & (columns < after)
        tokens = torch.full(mask.shape, pad_id, dtype=torch.long, device=self._device)
        read = list(chain.from_iterable(prompt.tokens for prompt in prompts))
        tokens[columns < before] = torch.tensor(read, dtype=torch.long, device=self._device)
        tokens[action_mask] = chosen[real]
        widened = {}
        for name, column in drawn.items():
            widened[name] = torch.zeros(mask.shape, device=self._device)
            widened[name][action_mask] = column[real]
        return Trajectories(tokens=tokens, mask=mask, action_mask=action_mask, ended=ended, columns=widened)


@attrs.define(eq=False)
class Running:
    """K running sequences, in the decoder's order.

    Sequences may start at different steps. The host counts decoding steps (`passes`), from which the token index of
    each sequence (`at`) and the end of its limit follow without reading from the device.

    Attributes:
        indices: K indices of their prompts.
        rows: long[K], `indices` on the device.
        started: long[K], number of steps before each sequence's first token.
        cut_at: long[K], number of steps after which each sequence reaches its limit.
        tokens: long[K], the newest token of each.
        live: bool[K], True for sequences that have not ended; the tokens of the others are discarded.
        passes: number of decoding steps so far.
        last_join: number of steps before the most recent sequences joined.
        cuts: all values of `cut_at`, on the host.
    """

    indices: list[int]
    rows: Tensor
    started: Tensor
    cut_at: Tensor
    tokens: Tensor
    live: Tensor
    passes: int
    last_join: int
    cuts: set[int]

    @classmethod
    def begin(
        cls, indices: Sequence[int], limits: Sequence[int], tokens: Sequence[int], device: torch.device, passes: int = 0
    ) -> Running:
        """Start K sequences.

        Args:
            indices: K indices of their prompts.
            limits: maximum number of new tokens of each.
            tokens: the last token of each prompt.
            device: the decoder's device.
            passes: number of decoding steps before, if they join running sequences.
        """
        cuts = [passes + limit for limit in limits]
        rows, cut_at, last = (tensor_on(device, numbers) for numbers in (indices, cuts, tokens))
        started = torch.full_like(rows, passes)
        live = torch.ones_like(rows, dtype=torch.bool)
        return cls(list(indices), rows, started, cut_at, last, live, passes, passes, set(cuts))

    @property
    def at(self) -> Tensor:
        """Return the number of new tokens of each sequence: long[K]."""
        return self.passes - self.started

    @property
    def is_cut(self) -> bool:
        """Return whether a sequence may have reached its limit with the newest token."""
        return self.passes in self.cuts

    @property
    def is_over(self) -> bool:
        """Return whether every sequence has reached its limit."""
        return self.passes >= max(self.cuts)

    def advance(self, tokens: Tensor, ended: Tensor) -> None:
        """Store the newest tokens, long[K], and update `live` with `ended`, bool[K], and the limits."""
        self.passes += 1
        self.tokens, self.live = tokens, self.live & ~ended
        if self.is_cut:
            self.live = self.live & (self.cut_at > self.passes)

    def going(self) -> list[int]:
        """Return the positions of the live sequences; this synchronises with the device."""
        return [position for position, is_live in enumerate(self.live.tolist()) if is_live]

    def keep(self, going: Sequence[int], rows: Tensor) -> list[int]:
        """Keep the sequences at `going` (`rows`, long[L], on the device); return the prompt indices of the others."""
        left = set(self.indices)
        self.indices = [self.indices[position] for position in going]
        for name in ("rows", "started", "cut_at", "tokens", "live"):
            setattr(self, name, getattr(self, name)[rows])
        return sorted(left.difference(self.indices))

    def join(self, others: Running) -> None:
        """Append other sequences."""
        self.indices += others.indices
        for name in ("rows", "started", "cut_at", "tokens", "live"):
            setattr(self, name, torch.cat([getattr(self, name), getattr(others, name)]))
        self.last_join, self.cuts = others.last_join, self.cuts | others.cuts


NUM_SHOWN = 6
"""Most tokens of a text that an error lists."""


@attrs.frozen
class TokenIds:
    """The tokens of the options `logit_bias`, `allowed_tokens` and `forbidden_tokens`, by their ids.

    Attributes:
        bias: what is added to the logit of each token.
        allowed: the only tokens that are sampled; None if all are.
        forbidden: tokens that are not sampled.
    """

    bias: Mapping[int, float]
    allowed: frozenset[int] | None
    forbidden: frozenset[int]

    @classmethod
    def read(cls, options: TokenOptions, tokenizer: object) -> TokenIds:
        """Look up the tokens that options name.

        Raises:
            ConfigError: a text is not that of one token, two names are those of one token, or a token is both allowed
                and forbidden.
        """
        biased = _ids("logit_bias", [token for token, _ in options.biases], tokenizer)
        bias = {token: number for token, (_, number) in zip(biased, options.biases, strict=True)}
        allowed = options.allowed_tokens
        permitted = None if allowed is None else frozenset(_ids("allowed_tokens", allowed, tokenizer))
        forbidden = _ids("forbidden_tokens", options.forbidden_tokens, tokenizer)
        if both := [token for token in forbidden if permitted is not None and token in permitted]:
            raise ConfigError(
                f"sampler.forbidden_tokens: token {_shown(both[0], tokenizer)} is in allowed_tokens too; leave it "
                "out of one"
            )
        return cls(bias, permitted, frozenset(forbidden))

    @property
    def is_empty(self) -> bool:
        """Whether the options name no tokens."""
        return not self.bias and not self.excludes

    @property
    def excludes(self) -> bool:
        """Whether some tokens are never sampled."""
        return self.allowed is not None or bool(self.forbidden)

    def may_be_sampled(self, token: int) -> bool:
        """Return whether a token is allowed and not forbidden."""
        return token not in self.forbidden and (self.allowed is None or token in self.allowed)

    def offsets(self, vocabulary: int, device: torch.device) -> Tensor:
        """Return what is added to the logits of each token, -inf for those that are not sampled: float[V].

        Raises:
            ConfigError: an id is not in the vocabulary, or no token may be sampled.
        """
        named = {"logit_bias": self.bias, "allowed_tokens": self.allowed or (), "forbidden_tokens": self.forbidden}
        for option, tokens in named.items():
            if wrong := [token for token in tokens if not 0 <= token < vocabulary]:
                raise ConfigError(
                    f"sampler.{option}: {wrong[0]} is no id of the model's vocabulary of {vocabulary} tokens, 0 to "
                    f"{vocabulary - 1}"
                )
        offsets = torch.zeros(vocabulary, device=device)
        if self.bias:
            offsets[tensor_on(device, list(self.bias))] = torch.tensor(list(self.bias.values()), device=device)
        if self.allowed is not None:
            excluded = torch.ones(vocabulary, dtype=torch.bool, device=device)
            excluded[tensor_on(device, sorted(self.allowed))] = False
            offsets = offsets.masked_fill(excluded, float("-inf"))
        if self.forbidden:
            offsets[tensor_on(device, sorted(self.forbidden))] = float("-inf")
        if not bool((offsets > float("-inf")).any()):
            raise ConfigError(
                f"sampler.forbidden_tokens: all {vocabulary} tokens of the vocabulary are forbidden; leave some out"
            )
        return offsets


def _ids(option: str, tokens: Sequence[Token], tokenizer: Any) -> list[int]:
    """Return the ids of tokens that an option names."""
    texts = [token for token in tokens if isinstance(token, str)]
    found = encode_continuations(tokenizer, texts, lambda i: f"sampler.{option}: {texts[i]!r}")
    by_text = {text: _only(option, text, ids, tokenizer) for text, ids in zip(texts, found, strict=True)}
    ids = [by_text[token] if isinstance(token, str) else token for token in tokens]
    first: dict[int, Token] = {}
    for token, name in zip(ids, tokens, strict=True):
        if token in first:
            raise ConfigError(f"sampler.{option}: {first[token]!r} and {name!r} are the same token; name it once")
        first[token] = name
    return ids


def _only(option: str, text: str, ids: Sequence[int], tokenizer: Any) -> int:
    """Return the only token of a text."""
    is_unknown = list(ids) == [tokenizer.unk_token_id] and text != tokenizer.unk_token
    if len(ids) == 1 and not is_unknown:
        return ids[0]
    if is_unknown or not ids:
        found = "is no token, and is not made of any"
    else:
        parts = ", ".join(_shown(token, tokenizer) for token in ids[:NUM_SHOWN])
        found = f"is {len(ids)} tokens, {parts}{', ...' if len(ids) > NUM_SHOWN else ''}"
    hint = f"; an id is written as a number, {text}" if text.isdecimal() else ""
    raise ConfigError(
        f"sampler.{option}: the text {text!r} {found}, of this tokenizer; give the text of one token, with the space "
        f"before it if it has one, or its id{hint}"
    )


def _shown(token: int, tokenizer: Any) -> str:
    return f"{token} ({decode(tokenizer, [[token]], skip_special_tokens=False)[0]!r})"


SLACK = 8
"""Tokens decoded beyond the span of a stop sequence, for tokens without text and parts of characters."""
REPLACEMENT = "\ufffd"
"""A tokenizer decodes an incomplete character to this."""


class StopSequences:
    """Detects stop sequences in a continuation, independent of token boundaries.

    Only the newest tokens are decoded, and only if the last one can complete a stop sequence; this property is cached
    per token. Special tokens are decoded too, so that their text can be a stop sequence.

    Args:
        tokenizer: the policy's tokenizer.
        sequences: at least one string.

    Raises:
        ConfigError: a string is empty.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, sequences: Sequence[str]) -> None:
        if "" in sequences:
            raise ConfigError(f"gen.stop_sequences = {list(sequences)}: '' would end every continuation; remove it")
        self._tokenizer, self._sequences = tokenizer, tuple(sequences)
        self._last_characters = {sequence[-1] for sequence in sequences}
        self._may_complete: dict[int, bool] = {}
        self.tail = max(len(sequence.encode()) for sequence in sequences) + SLACK

    def completed(self, newest: Sequence[int], window: Callable[[int], tuple[list[int], list[int]]]) -> list[int]:
        """Return the rows whose newest token completed a stop sequence.

        Args:
            newest: the newest token of each row.
            window: returns, for a row, a few context tokens, which are not searched, and the last `tail` tokens of the
                continuation (or all, if there are fewer).
        """
        return [row for row, token in enumerate(newest) if self._is_candidate(token) and self._is_in(*window(row))]

    def _is_in(self, context: list[int], tokens: list[int]) -> bool:
        before, whole, alone = decode(self._tokenizer, [context, context + tokens, tokens], skip_special_tokens=False)
        text = whole[len(before) :] if whole.startswith(before) else alone
        return any(sequence in text for sequence in self._sequences)

    def _is_candidate(self, token: int) -> bool:
        is_candidate = self._may_complete.get(token)
        if is_candidate is None:
            # Decoded twice in a row, because some tokenizers drop a space at the beginning of a text.
            (text,) = decode(self._tokenizer, [[token, token]], skip_special_tokens=False)
            is_candidate = REPLACEMENT in text or not self._last_characters.isdisjoint(text)
            self._may_complete[token] = is_candidate
        return is_candidate
