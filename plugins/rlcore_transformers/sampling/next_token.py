"""Choose the next token of each running sequence, and find the sequences that end with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import torch
from torch import Tensor

from rlcore.errors import ConfigError, DataError, ModelError
from rlcore.protocols import DecodeStep, Policy
from rlcore.sampling import check_vocabulary
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, tensor_on
from rlcore_transformers.data.tokens import decode
from rlcore_transformers.sampling.draw import chosen_logprobs, draw, restrict, steer
from rlcore_transformers.sampling.logit_changes import LogitChanges
from rlcore_transformers.sampling.record import Record, Running, SampledTokens
from rlcore_transformers.sampling.token_ids import StopSequences
from rlcore_transformers.sampling.token_options import TokenOptions

CONTEXT = 4
"""Number of preceding tokens decoded with a text, because some tokenizers decode the first token differently."""
UNCHANGED = TokenOptions()


@attrs.define(eq=False)
class TokenChooser:
    """Chooses, checks and records tokens according to the sampling options.

    Attributes:
        policy: its EOS ids end a sequence, its tokenizer decodes tokens for stop sequences.
        sampling: the options.
        prompts: N prompts.
        uniforms: float64[N, M], a random number in [0, 1) for each token of each continuation; None for greedy
            sampling.
        logit_mask: bool[V, V], entry [i, j] is True if token j may follow token i; None allows all.
        record: the tokens chosen so far.
        draw: samples a token of each row of logits (`rlcore_transformers.sampling.draw.draw`).
        options: the sampler's options that change the distribution of the next token.
        changes: those of them that change logits before truncation; None if there are none.
    """

    policy: Policy
    sampling: SamplingConfig
    prompts: Sequence[Prompt]
    uniforms: Tensor | None
    logit_mask: Tensor | None
    record: Record
    draw: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = draw
    options: TokenOptions = UNCHANGED
    changes: LogitChanges | None = attrs.field(init=False, default=None)
    is_plain: bool = attrs.field(init=False)
    eos: Tensor = attrs.field(init=False)
    stops: StopSequences | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        ids = self.sampling.eos_token_ids
        ids = self.policy.eos_token_ids if ids is None else ids
        self.eos = tensor_on(self.policy.device, ids)
        self.is_plain = self.sampling.is_plain and self.logit_mask is None and not self.options.reshaping
        if self.sampling.stop_sequences:
            self.stops = StopSequences(self.policy.tokenizer, self.sampling.stop_sequences)

    def check(self, outputs: DecodeStep) -> None:
        """Check EOS ids, tokens, mask and advantages against the first outputs, which give the vocabulary size.

        Raises:
            ConfigError: an EOS id, or a token of the sampler's options, is not in the vocabulary.
            DataError: the mask has another size than the vocabulary.
            ModelError: the decoder returned no advantages although `gen.beta` is set.
        """
        vocabulary = outputs.logits.shape[1]
        ids = self.sampling.eos_token_ids or ()
        if wrong := [token for token in ids if not 0 <= token < vocabulary]:
            raise ConfigError(
                f"gen.eos_token_ids = {list(ids)}: {wrong[0]} is not in the vocabulary of {vocabulary} tokens"
            )
        if self.logit_mask is not None:
            check_vocabulary(self.logit_mask, vocabulary)
        if self.sampling.beta and outputs.advantages is None:
            raise ModelError(
                "gen.beta: the policy's decoder returned no advantages, although advantages=True was passed"
            )
        if self.options.reshaping and self.changes is None:
            longest = self.record.num_tokens
            self.changes = LogitChanges.of(
                self.options, self.policy, self.sampling, self.prompts, vocabulary=vocabulary, longest=longest
            )

    def advance(self, outputs: DecodeStep, running: Running) -> None:
        """Choose the next token of every sequence, record it, and mark the sequences that end with it.

        Raises:
            DataError: the mask allows no token after the last token of a live sequence.
        """
        at = running.at
        early = None
        if running.passes - running.last_join < self.sampling.min_new_tokens:
            early = at < self.sampling.min_new_tokens
        sampled = self._choose(outputs, running, at, early)
        if self.logit_mask is not None:
            self._check_dead_end(self.logit_mask, sampled, running, early)
        self.record.write(running.rows, running.live, at, sampled)
        if self.changes is not None:
            self.changes.note(running, at, sampled.tokens)
        ended = self._ended(sampled.tokens, running.indices, at) & running.live
        self.record.end(running.rows, ended)
        running.advance(sampled.tokens, ended)

    def _choose(self, outputs: DecodeStep, running: Running, at: Tensor, early: Tensor | None) -> SampledTokens:
        """Choose token number `at`, long[K], of the running sequences; no EOS for `early` sequences, bool[K]."""
        sampling, logits = self.sampling, outputs.logits.float()
        tempered = restrict(logits, temperature=sampling.policy_temperature)
        columns = {} if outputs.values is None else {"values": outputs.values}
        if self.is_plain and self.uniforms is not None:
            name = "logprobs" if outputs.is_exact else "sampling_logprobs"
            tokens, columns[name] = self.draw(tempered, self.uniforms[running.rows, at])
            return SampledTokens(tokens, columns)
        steered = logits
        if sampling.beta and outputs.advantages is not None:
            steered = steer(logits, outputs.advantages, sampling.beta)
        if self.changes is not None:
            steered = self.changes(steered, running)
        if early is not None and len(self.eos):
            steered = torch.where(early[:, None], restrict(steered, forbidden=self.eos), steered)
        allowed = None if self.logit_mask is None else self.logit_mask[running.tokens]
        if self.uniforms is None:
            tokens = restrict(steered, allowed=allowed).argmax(1)
            columns["sampling_logprobs"] = torch.zeros_like(logits[:, 0])
        else:
            restricted = restrict(
                steered, temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p,
                min_p=self.options.min_p, allowed=allowed,
            )  # fmt: skip
            tokens, columns["sampling_logprobs"] = self.draw(restricted, self.uniforms[running.rows, at])
        if outputs.is_exact:
            columns["logprobs"] = chosen_logprobs(tempered, tokens)
        return SampledTokens(tokens, columns)

    def _check_dead_end(self, mask: Tensor, sampled: SampledTokens, running: Running, early: Tensor | None) -> None:
        """Raise if the chosen token of a live sequence is one that the mask excludes."""
        last = running.tokens
        wrong = ~mask[last, sampled.tokens]
        excluded = None if self.changes is None else self.changes.excluded
        if excluded is not None:
            wrong |= excluded[sampled.tokens]
        if early is not None:
            wrong |= early & (sampled.tokens[:, None] == self.eos).any(1)
        wrong &= running.live
        if bool(wrong.any()):
            token = int(last[wrong][0])
            (text,) = decode(self.policy.tokenizer, [[token]], skip_special_tokens=False)
            is_early = early is not None and bool(early[wrong][0])
            but = f", EOS not before gen.min_new_tokens = {self.sampling.min_new_tokens}" if is_early else ""
            but += "" if excluded is None else ", and sampler.allowed_tokens or forbidden_tokens exclude others"
            raise DataError(
                f"logit_mask[{token}]: allows no token after token {token} ({text!r}){but}, and a sequence has reached "
                "it; allow EOS after it, which ends a sequence, or forbid this token"
            )

    def _ended(self, tokens: Tensor, indices: Sequence[int], at: Tensor) -> Tensor:
        """Return which sequences end with their newest token, number `at`: bool[K]."""
        ended = (tokens[:, None] == self.eos).any(1)
        if self.stops is not None:
            tail, ends = self.stops.tail, (at + 1).tolist()
            completed = self.stops.completed(tokens.tolist(), lambda i: self._window(indices[i], ends[i], tail))
            if completed:
                ended[completed] = True
        return ended

    def _window(self, row: int, end: int, tail: int) -> tuple[list[int], list[int]]:
        """Return the last `tail` of `end` chosen tokens of a row, after the CONTEXT tokens that precede them."""
        begin = max(0, end - tail)
        chosen = self.record.chosen(row, max(0, begin - CONTEXT), end)
        tokens = [*self.prompts[row].tokens[-CONTEXT:], *chosen] if begin < CONTEXT else chosen
        split = len(tokens) - (end - begin)
        return tokens[max(0, split - CONTEXT) : split], tokens[split:]
