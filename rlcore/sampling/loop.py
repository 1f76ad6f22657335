"""The built-in sampler: any policy that can decode, drawn from one token at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import attrs
import torch
from torch import Tensor, nn

from rlcore.data.prompts import build_prompts
from rlcore.errors import ConfigError, DataError
from rlcore.protocols import DecodeStep, Policy
from rlcore.sampling.draw import chosen_logprobs, draw, restrict
from rlcore.sampling.record import Choice, Record
from rlcore.sampling.stops import StopSequences
from rlcore.settings import DataConfig, SamplingConfig
from rlcore.types import Prompt, Trajectories

LEAVE_SHARE = 8
"""Finished sequences leave the running batch once they are one in so many of it: copying what stays then pays."""
CONTEXT = 4
"""Tokens before a text that are decoded with it, because some tokenizers spell a text's first token differently."""


def sample(
    policy: Policy,
    prompts: Sequence[Prompt] | Sequence[str],
    sampling: SamplingConfig,
    *,
    generator: torch.Generator | None = None,
) -> Trajectories:
    """Continue each prompt once and say how likely every chosen token was.

    A sequence goes on until it draws an EOS token or completes a stop sequence (`ended`; what was drawn stays in the
    trajectory as chosen), or until `max_new_tokens` or the policy's context is used up (not `ended`). All random
    numbers are drawn at the start, one row of them for each prompt in the order given, so what a sequence draws
    depends neither on `batch_size` nor on when its neighbours finish. Greedy sampling (temperature 0) draws none.

    Args:
        policy: sampled in evaluation mode, and put back as it was.
        prompts: N prompts, or strings for the policy's tokenizer.
        sampling: how tokens are drawn.
        generator: source of the random numbers; torch's own if left out.

    Returns:
        N trajectories in the order of `prompts`, padded on the right, on the policy's device, with the columns
        `logprobs` (untempered policy), `sampling_logprobs` (the distribution drawn from, where it is another one) and
        `values` (where the policy has a value head to decode with).

    Raises:
        DataError: a prompt is empty, or leaves no room in the context for a single token.
        ConfigError: options that contradict each other, or an EOS id the model does not know.
    """
    if isinstance(prompts, str):
        raise DataError(f"prompts = {prompts!r:.80}: give a list, [{prompts!r:.80}] for one prompt")
    if sampling.min_new_tokens > sampling.max_new_tokens:
        raise ConfigError(
            f"gen.min_new_tokens = {sampling.min_new_tokens}: must not exceed max_new_tokens, {sampling.max_new_tokens}"
        )
    ready = _tokenized(policy, prompts)
    limits = _limits(ready, sampling.max_new_tokens, policy.max_length)
    longest = max(limits, default=0)
    uniforms = None
    if sampling.temperature > 0:
        source = generator.device if generator is not None else torch.device("cpu")
        uniforms = torch.rand(len(ready), longest, dtype=torch.float64, generator=generator, device=source)
        uniforms = uniforms.to(policy.device)
    names = ("logprobs",) if sampling.is_plain else ("logprobs", "sampling_logprobs")
    loop = _Loop(
        policy=policy,
        sampling=sampling,
        prompts=ready,
        limits=limits,
        uniforms=uniforms,
        record=Record(len(ready), longest, policy.device, names),
    )
    with torch.no_grad(), evaluating(policy.module):
        for rows in _batches(ready, sampling.batch_size):
            loop.run(rows)
    pad_id = policy.tokenizer.pad_token_id
    return loop.record.trajectories(ready, pad_id if isinstance(pad_id, int) else 0)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put `module` in evaluation mode, and each of its modules back in its own mode at the end."""
    training = [part for part in module.modules() if part.training]
    if training:
        module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def _tokenized(policy: Policy, prompts: Sequence[Prompt] | Sequence[str]) -> list[Prompt]:
    ready = [prompt for prompt in prompts if isinstance(prompt, Prompt)]
    if len(ready) == len(prompts):
        return ready
    return build_prompts(list(prompts), policy.tokenizer, DataConfig(), max_length=0)


def _limits(prompts: Sequence[Prompt], max_new_tokens: int, max_length: int) -> list[int]:
    """Count the tokens each prompt may be continued by."""
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


def _batches(prompts: Sequence[Prompt], size: int) -> Iterator[list[int]]:
    """Yield the rows of one batch after another; prompts of about the same length go together."""
    if not size or size >= len(prompts):
        if prompts:
            yield list(range(len(prompts)))
        return
    by_length = sorted(range(len(prompts)), key=lambda row: len(prompts[row].tokens))
    for start in range(0, len(prompts), size):
        yield by_length[start : start + size]


@attrs.define(eq=False)
class _Loop:
    """Run batches of prompts to their ends, and record them."""

    policy: Policy
    sampling: SamplingConfig
    prompts: Sequence[Prompt]
    limits: Sequence[int]
    uniforms: Tensor | None
    record: Record
    eos: Tensor = attrs.field(init=False)
    stops: StopSequences | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        ids = self.sampling.eos_token_ids
        ids = self.policy.eos_token_ids if ids is None else ids
        self.eos = torch.tensor(ids, dtype=torch.long, device=self.policy.device)
        if self.sampling.stop_sequences:
            self.stops = StopSequences(self.policy.tokenizer, self.sampling.stop_sequences)

    def run(self, batch: Sequence[int]) -> None:
        """Continue the prompts at `batch` until each has ended or been cut."""
        limits = torch.tensor([self.limits[row] for row in batch], device=self.policy.device)
        cuts = {self.limits[row] for row in batch}
        last = max(cuts)
        rows = torch.tensor(batch, device=self.policy.device)
        live = torch.ones_like(rows, dtype=torch.bool)
        decoder = self.policy.decoder([self.prompts[row].tokens for row in batch], max_new_tokens=last)
        said = decoder.start()
        self._check_eos(said.logits.shape[1])
        for at in range(last):
            choice = self._choose(said, rows, at)
            self.record.write(rows, live, at, choice)
            ended = self._ended(choice.tokens, rows, at) & live
            self.record.ended[rows] |= ended
            live = live & ~ended
            if at + 1 in cuts:
                live &= limits > at + 1
            num_live = int(live.sum())
            if not num_live:
                break
            tokens = choice.tokens
            num_finished = len(rows) - num_live
            if num_finished * LEAVE_SHARE >= len(rows) or (num_finished and at + 1 in cuts):
                kept = live.nonzero()[:, 0]
                decoder.keep(kept)
                rows, limits, tokens, live = rows[kept], limits[kept], tokens[kept], live[kept]
            said = decoder.step(tokens)

    def _check_eos(self, vocabulary: int) -> None:
        given = self.sampling.eos_token_ids or ()
        if wrong := [token for token in given if not 0 <= token < vocabulary]:
            raise ConfigError(
                f"gen.eos_token_ids = {list(given)}: {wrong[0]} is no token of this model, which knows {vocabulary}"
            )

    def _choose(self, said: DecodeStep, rows: Tensor, at: int) -> Choice:
        sampling, logits = self.sampling, said.logits.float()
        columns = {} if said.values is None else {"values": said.values}
        if sampling.is_plain and self.uniforms is not None:
            tokens, columns["logprobs"] = draw(logits, self.uniforms[rows, at])
            return Choice(tokens, columns)
        forbidden = self.eos if at < sampling.min_new_tokens and len(self.eos) else None
        if self.uniforms is None:
            tokens = restrict(logits, forbidden=forbidden).argmax(1)
            columns["sampling_logprobs"] = torch.zeros_like(logits[:, 0])
        else:
            restricted = restrict(
                logits,
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                forbidden=forbidden,
            )
            tokens, columns["sampling_logprobs"] = draw(restricted, self.uniforms[rows, at])
        columns["logprobs"] = chosen_logprobs(logits, tokens)
        return Choice(tokens, columns)

    def _ended(self, tokens: Tensor, rows: Tensor, at: int) -> Tensor:
        """Tell which sequences end with their newest token: bool[K]."""
        ended = (tokens[:, None] == self.eos).any(1)
        if self.stops is not None:
            tail = self.stops.tail
            completed = self.stops.completed(tokens.tolist(), lambda i: self._window(int(rows[i]), at + 1, tail))
            ended[completed] = True
        return ended

    def _window(self, row: int, end: int, tail: int) -> tuple[list[int], list[int]]:
        """Return the last `tail` of `end` chosen tokens, and before them CONTEXT tokens of what they follow."""
        begin = max(0, end - tail)
        chosen: list[int] = self.record.tokens[row, max(0, begin - CONTEXT) : end].tolist()
        known = [*self.prompts[row].tokens[-CONTEXT:], *chosen] if begin < CONTEXT else chosen
        split = len(known) - (end - begin)
        return known[max(0, split - CONTEXT) : split], known[split:]
