"""The built-in sampler: autoregressive sampling from any policy with a decoder.

Also in this file: choose the next token of each running sequence, and find the sequences that end with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs
import torch
from torch import Tensor

from rlcore.errors import ConfigError, DataError, ModelError
from rlcore.ops import eval_mode
from rlcore.protocols import Decoder, DecodeStep, Policy, Sampler
from rlcore.protocols.learners import joins
from rlcore.sampling import check_options, check_vocabulary, draw_seeds, takes_waiting
from rlcore.settings import DataConfig, SamplingConfig
from rlcore.types import Prompt, Trajectories, tensor_on, to_device
from rlcore_transformers.data.prompts import build_prompts
from rlcore_transformers.data.tokens import decode
from rlcore_transformers.sampling.draw import (
    LogitChanges,
    check_tokens,
    chosen_logprobs,
    draw,
    draw_multinomial,
    restrict,
    row_uniforms,
    steer,
)
from rlcore_transformers.sampling.record import Record, Running, SampledTokens, StopSequences
from rlcore_transformers.sampling.token_options import ALL_ON, SamplerConfig, TokenOptions

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


LEAVE_SHARE = 8
"""Finished sequences leave the running batch once they are 1/LEAVE_SHARE of it; copying the rest then pays off."""
READ_EVERY = {"cpu": 1, "cuda": 8}
"""Number of steps between two reads of `live` from the device; each read synchronises with an accelerator."""
JOIN_SHARE = 4
"""Waiting prompts join once 1/JOIN_SHARE of the batch is free, because their prefill is a forward pass of its own."""


def build_sampler(config: SamplerConfig) -> Sampler:
    """Return the sampler with these options, as a run chooses it by the name `default`."""
    return DefaultSampler(config)


@attrs.frozen
class DefaultSampler:
    """Autoregressive sampling (`rlcore.protocols.Sampler`); `options` are those of the section `sampler`."""

    options: SamplerConfig = ALL_ON

    @property
    def draws_from_policy(self) -> bool:
        """Whether no option changes the distribution of the next token."""
        return not self.options.reshaping

    @property
    def exact_logprobs(self) -> bool:
        """Whether trainers may use the column `logprobs`; where tokens are of another distribution they compute it."""
        return self.draws_from_policy

    def check(self, policy: Policy, samplings: Sequence[SamplingConfig]) -> None:
        """Check the tokens that options name, before the first step of a run (`rlcore.protocols.Sampler`).

        Raises:
            ConfigError: the options name tokens that there are not, or leave none to sample.
        """
        check_tokens(self.options, policy, samplings)

    def __call__(
        self,
        policy: Policy,
        prompts: Sequence[Prompt] | Sequence[str],
        sampling: SamplingConfig,
        *,
        generator: torch.Generator | None = None,
        row_seeds: Sequence[int] | None = None,
        logit_mask: Tensor | None = None,
        on_batch: Callable[[list[int], Trajectories], None] | None = None,
    ) -> Trajectories:
        """Sample one continuation of each prompt, with the log-prob of every sampled token.

        A sequence ends with an EOS token or a completed stop sequence (`ended` is True; both stay in the trajectory as
        chosen tokens), or at `max_new_tokens` or the policy's context length (`ended` is False). The random numbers of
        a sequence follow from its own seed, so its sampled tokens depend neither on `batch_size` nor on the other
        sequences. Greedy sampling (temperature 0) uses no random numbers.

        At most `batch_size` sequences run at once, the longest prompts first. If the decoder supports it
        (`rlcore.protocols.learners.JoiningDecoder`), waiting prompts join once enough sequences have left the batch;
        otherwise each batch runs to its end before the next one begins.

        With `sampling.beta` tokens are sampled from softmax(log pi + beta A), where A are the advantages of the
        policy's Q-heads; all other options apply to this distribution.

        Args:
            policy: sampled in evaluation mode; its mode is restored afterwards.
            prompts: N prompts, or strings for the policy's tokenizer.
            sampling: the sampling options.
            generator: source of the seeds if `row_seeds` is omitted; torch's default generator if both are.
            row_seeds: a seed for each prompt, in 0..2^64-1.
            logit_mask: bool[V, V], entry [i, j] is True if token j may follow token i; None allows all.
            on_batch: called with indices in `prompts` and their finished trajectories, once about `batch_size`
                sequences have finished; every index occurs once. The policy is in evaluation mode during the call.

        Returns:
            N trajectories in the order of `prompts`, padded on the right, on the policy's device, with the columns
            `logprobs` (log softmax(logits / temperature), of the whole vocabulary; omitted if the decoder is not
            exact), `sampling_logprobs` (under the sampling distribution, if it differs) and `values` (if the policy's
            decoder returns values).

        Raises:
            DataError: a prompt is empty or fills the context; the mask has another size than the model's vocabulary, or
                allows no token after a sampled one; there are more or fewer seeds than prompts.
            ConfigError: two options contradict each other, an EOS id or a token of an option is not in the vocabulary,
                or `beta` is set for a policy without Q-heads.
        """
        check_options(policy, sampling)
        ready = _as_prompts(policy, prompts)
        limits = _token_limits(ready, sampling.max_new_tokens, policy.max_length)
        longest = max(limits, default=0)
        uniforms = None
        if sampling.temperature > 0:
            seeds = draw_seeds(len(ready), generator) if row_seeds is None else row_seeds
            if len(seeds) != len(ready):
                raise DataError(f"row_seeds: has {len(seeds)} seeds for {len(ready)} prompts; give one for each prompt")
            uniforms = to_device(row_uniforms(seeds, longest), policy.device)
        is_plain = sampling.is_plain and logit_mask is None and self.draws_from_policy
        names = ("logprobs",) if is_plain else ("logprobs", "sampling_logprobs")
        record = Record(len(ready), longest, policy.device, () if ready else names)
        pad_id = policy.tokenizer.pad_token_id
        pad_id = pad_id if isinstance(pad_id, int) else 0

        def report(indices: list[int]) -> None:
            if on_batch is not None:
                rows = torch.tensor(indices, device=policy.device)
                on_batch(indices, record.trajectories([ready[index] for index in indices], pad_id, rows))

        mask = None if logit_mask is None else to_device(logit_mask, policy.device)
        draw_tokens = draw if self.options.inverse_cdf else partial(draw_multinomial, generator=generator)
        chooser = TokenChooser(policy, sampling, ready, uniforms, mask, record, draw_tokens, self.options)
        size = sampling.batch_size or len(ready)
        loop = _Loop(
            policy, ready, limits, chooser, size, _decoding_order(ready, size), report, self.options.early_leaving
        )
        with torch.no_grad(), eval_mode(policy.module):
            loop.run()
        return record.trajectories(ready, pad_id)


sample = DefaultSampler()
"""The sampler with its default options."""


def _as_prompts(policy: Policy, prompts: Sequence[Prompt] | Sequence[str]) -> list[Prompt]:
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


def _token_limits(prompts: Sequence[Prompt], max_new_tokens: int, max_length: int) -> list[int]:
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


def _decoding_order(prompts: Sequence[Prompt], size: int) -> deque[int]:
    """Return the indices of the prompts in decoding order; `size` prompts are decoded at once, 0 means all.

    Prompts of similar length are decoded together, the longest first, so that the first allocation fits all others.
    """
    indices = range(len(prompts))
    if not size or size >= len(prompts):
        return deque(indices)
    return deque(sorted(indices, key=lambda index: -len(prompts[index].tokens)))


@attrs.define(eq=False)
class _Loop:
    """Decoding loop over all prompts, `size` sequences at once.

    Attributes:
        policy: the policy to sample from.
        prompts: N prompts.
        limits: maximum number of new tokens of each prompt.
        chooser: samples tokens and records them.
        size: number of sequences that run at once.
        waiting: indices of the prompts that have not started, the longest first.
        report: called with the indices of finished prompts.
        leave_early: whether finished sequences leave before all of them have finished.
    """

    policy: Policy
    prompts: Sequence[Prompt]
    limits: Sequence[int]
    chooser: TokenChooser
    size: int
    waiting: deque[int]
    report: Callable[[list[int]], None]
    leave_early: bool
    _finished: list[int] = attrs.field(factory=list, init=False)

    def run(self) -> None:
        """Continue all prompts."""
        options: dict[str, Any] = {"advantages": True} if self.chooser.sampling.beta else {}
        passes_waiting = takes_waiting(self.policy)
        while self.waiting:
            running = self._next(self.size)
            room = max(self.limits[index] for index in running.indices)
            if passes_waiting:
                options["waiting"] = len(self.waiting)
            decoder = self.policy.decoder(self._tokens(running), max_new_tokens=room, **options)
            outputs = decoder.start()
            self.chooser.check(outputs)
            self._run_out(decoder, running, outputs)
        self._leave([])

    def _run_out(self, decoder: Decoder, running: Running, outputs: DecodeStep) -> None:
        """Sample until every sequence of the decoder, later joined ones included, has ended or reached its limit."""
        device, joining = self.policy.device, joins(decoder)
        every = READ_EVERY.get(device.type, READ_EVERY["cuda"])
        while True:
            self.chooser.advance(outputs, running)
            if running.is_over:
                break
            if running.is_cut or running.passes % every == 0:
                going = running.going()
                if not going:
                    break
                num_finished = len(running.indices) - len(going)
                # Sequences at their limit leave at once: their contexts may have no room for one more token.
                are_many = self.leave_early and num_finished * LEAVE_SHARE >= len(running.indices)
                if are_many or (num_finished and running.is_cut):
                    kept = tensor_on(device, going)
                    decoder.keep(kept)
                    self._leave(running.keep(going, kept))
            outputs = decoder.step(running.tokens)
            free = self.size - len(running.indices)
            if joining is not None and self.waiting and free * JOIN_SHARE >= self.size:
                others = self._next(free, running.passes)
                outputs = _together(outputs, joining.join(self._tokens(others)))
                running.join(others)
        self._leave(running.indices)

    def _next(self, number: int, passes: int = 0) -> Running:
        """Start at most `number` of the waiting prompts."""
        indices = [self.waiting.popleft() for _ in range(min(number, len(self.waiting)))]
        limits, last = [self.limits[index] for index in indices], [self.prompts[index].tokens[-1] for index in indices]
        return Running.begin(indices, limits, last, self.policy.device, passes)

    def _tokens(self, running: Running) -> list[tuple[int, ...]]:
        return [self.prompts[index].tokens for index in running.indices]

    def _leave(self, indices: list[int]) -> None:
        """Collect finished sequences, and report them once there are `size` of them, or at the end (no indices)."""
        self._finished += indices
        if self._finished and (len(self._finished) >= self.size or not indices):
            self.report(sorted(self._finished))
            self._finished = []


def _together(outputs: DecodeStep, more: DecodeStep) -> DecodeStep:
    """Concatenate the outputs of the running sequences and of those that join them."""
    values, advantages = (
        None if before is None or behind is None else torch.cat([before, behind])
        for before, behind in ((outputs.values, more.values), (outputs.advantages, more.advantages))
    )
    return DecodeStep(torch.cat([outputs.logits, more.logits]), values, advantages, outputs.is_exact and more.is_exact)
