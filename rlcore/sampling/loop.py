"""The built-in sampler: any policy that can decode, drawn from one token at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import attrs
import torch
from torch import Tensor, nn

from rlcore.data.tokens import decode
from rlcore.devices import sent, tensor_on
from rlcore.errors import ConfigError, DataError, ModelError
from rlcore.protocols import DecodeStep, Policy
from rlcore.sampling.draw import chosen_logprobs, draw, restrict, steer
from rlcore.sampling.given import batches_of, check_options, check_vocabulary, limits_of, tokenized
from rlcore.sampling.record import Choice, Record
from rlcore.sampling.running import Running
from rlcore.sampling.stops import StopSequences
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories

LEAVE_SHARE = 8
"""Finished sequences leave the running batch once they are one in so many of it: copying what stays then pays."""
READ_EVERY = {"cpu": 1, "cuda": 8}
"""Tokens after which a device is asked which sequences go on; the program waits for an accelerator each time."""
CONTEXT = 4
"""Tokens before a text that are decoded with it, because some tokenizers spell a text's first token differently."""


def sample(
    policy: Policy,
    prompts: Sequence[Prompt] | Sequence[str],
    sampling: SamplingConfig,
    *,
    generator: torch.Generator | None = None,
    logit_mask: Tensor | None = None,
    on_batch: Callable[[list[int], Trajectories], None] | None = None,
) -> Trajectories:
    """Continue each prompt once and say how likely every chosen token was.

    A sequence goes on until it draws an EOS token or completes a stop sequence (`ended`; what was drawn stays in the
    trajectory as chosen), or until `max_new_tokens` or the policy's context is used up (not `ended`). All random
    numbers are drawn at the start, one row of them for each prompt in the order given, so what a sequence draws
    depends neither on `batch_size` nor on when its neighbours finish. Greedy sampling (temperature 0) draws none.

    With `sampling.beta` tokens are drawn from softmax(log pi + beta A), A being the advantages the policy's Q-heads
    give the tokens, and everything else acts on that.

    Args:
        policy: sampled in evaluation mode, and put back as it was.
        prompts: N prompts, or strings for the policy's tokenizer.
        sampling: how tokens are drawn.
        generator: source of the random numbers; torch's own if left out.
        logit_mask: bool[V, V], in row i True where a token may come next after token i; all may if left out.
        on_batch: called with places in `prompts` and their finished trajectories, as soon as a group of about
            `batch_size` of them is finished; every place comes once. The policy is in evaluation mode then.

    Returns:
        N trajectories in the order of `prompts`, padded on the right, on the policy's device, with the columns
        `logprobs` (untempered policy; not where the decoder is not exact), `sampling_logprobs` (the distribution drawn
        from, where it is another one) and `values` (where the policy has a value head to decode with).

    Raises:
        DataError: a prompt is empty, or leaves no room in the context for a single token; the mask is of another size
            than the model's vocabulary, or lets nothing follow what was drawn.
        ConfigError: options that contradict each other, an EOS id the model does not know, or `beta` for a policy
            without Q-heads.
    """
    check_options(policy, sampling)
    ready = tokenized(policy, prompts)
    limits = limits_of(ready, sampling.max_new_tokens, policy.max_length)
    longest = max(limits, default=0)
    uniforms = None
    if sampling.temperature > 0:
        source = generator.device if generator is not None else torch.device("cpu")
        uniforms = torch.rand(len(ready), longest, dtype=torch.float64, generator=generator, device=source)
        uniforms = sent(uniforms, policy.device)
    is_plain = sampling.is_plain and logit_mask is None
    names = ("logprobs",) if is_plain else ("logprobs", "sampling_logprobs")
    loop = _Loop(
        policy=policy,
        sampling=sampling,
        prompts=ready,
        limits=limits,
        uniforms=uniforms,
        logit_mask=None if logit_mask is None else sent(logit_mask, policy.device),
        is_plain=is_plain,
        record=Record(len(ready), longest, policy.device, () if ready else names),
    )
    pad_id = policy.tokenizer.pad_token_id
    pad_id = pad_id if isinstance(pad_id, int) else 0
    with torch.no_grad(), evaluating(policy.module):
        for rows in batches_of(ready, sampling.batch_size):
            loop.run(rows)
            if on_batch is not None:
                places = torch.tensor(rows, device=policy.device)
                on_batch(rows, loop.record.trajectories([ready[row] for row in rows], pad_id, places))
    return loop.record.trajectories(ready, pad_id)


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


@attrs.define(eq=False)
class _Loop:
    """Run batches of prompts to their ends, and record them."""

    policy: Policy
    sampling: SamplingConfig
    prompts: Sequence[Prompt]
    limits: Sequence[int]
    uniforms: Tensor | None
    logit_mask: Tensor | None
    is_plain: bool
    record: Record
    eos: Tensor = attrs.field(init=False)
    stops: StopSequences | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        ids = self.sampling.eos_token_ids
        ids = self.policy.eos_token_ids if ids is None else ids
        self.eos = tensor_on(self.policy.device, ids)
        if self.sampling.stop_sequences:
            self.stops = StopSequences(self.policy.tokenizer, self.sampling.stop_sequences)

    def run(self, batch: Sequence[int]) -> None:
        """Continue the prompts at `batch` until each has ended or been cut."""
        device, limits = self.policy.device, [self.limits[row] for row in batch]
        read = [self.prompts[row].tokens for row in batch]
        running = Running.begin(batch, limits, [prompt[-1] for prompt in read], device)
        every, cuts, last = READ_EVERY.get(device.type, READ_EVERY["cuda"]), set(limits), max(limits)
        asked = {"advantages": True} if self.sampling.beta else {}
        decoder = self.policy.decoder(read, max_new_tokens=last, **asked)
        said = decoder.start()
        self._check_said(said)
        for at in range(last):
            choice = self._choose(said, running.tokens, running.rows, at)
            if self.logit_mask is not None:
                self._check_dead_end(self.logit_mask, choice, running.tokens, running.live, at)
            self.record.write(running.rows, running.live, at, choice)
            ended = self._ended(choice.tokens, running.rows, at) & running.live
            self.record.ended[running.rows] |= ended
            running.tokens, running.live = choice.tokens, running.live & ~ended
            if at + 1 == last:
                break
            is_cut = at + 1 in cuts
            if is_cut:
                running.cut(at + 1)
            if is_cut or (at + 1) % every == 0:
                going = running.going()
                if not going:
                    break
                num_finished = len(running.rows) - len(going)
                # Those that are cut leave at once: their contexts may have no room for even one more token.
                if num_finished * LEAVE_SHARE >= len(running.rows) or (num_finished and is_cut):
                    kept = tensor_on(device, going)
                    decoder.keep(kept)
                    running.keep(kept)
            said = decoder.step(running.tokens)

    def _check_said(self, said: DecodeStep) -> None:
        """Check what was given against the vocabulary, which is known from the first logits only."""
        vocabulary = said.logits.shape[1]
        given = self.sampling.eos_token_ids or ()
        if wrong := [token for token in given if not 0 <= token < vocabulary]:
            raise ConfigError(
                f"gen.eos_token_ids = {list(given)}: {wrong[0]} is no token of this model, which knows {vocabulary}"
            )
        if self.logit_mask is not None:
            check_vocabulary(self.logit_mask, vocabulary)
        if self.sampling.beta and said.advantages is None:
            raise ModelError("gen.beta: the policy's decoder was asked for advantages and gave none")

    def _choose(self, said: DecodeStep, last: Tensor, rows: Tensor, at: int) -> Choice:
        """Choose the tokens that follow the tokens `last`, long[K], in the sequences `rows`, long[K]."""
        sampling, logits = self.sampling, said.logits.float()
        columns = {} if said.values is None else {"values": said.values}
        if self.is_plain and self.uniforms is not None:
            name = "logprobs" if said.is_exact else "sampling_logprobs"
            tokens, columns[name] = draw(logits, self.uniforms[rows, at])
            return Choice(tokens, columns)
        wanted = logits
        if sampling.beta and said.advantages is not None:
            wanted = steer(logits, said.advantages, sampling.beta)
        forbidden = self.eos if at < sampling.min_new_tokens and len(self.eos) else None
        allowed = None if self.logit_mask is None else self.logit_mask[last]
        if self.uniforms is None:
            tokens = restrict(wanted, forbidden=forbidden, allowed=allowed).argmax(1)
            columns["sampling_logprobs"] = torch.zeros_like(logits[:, 0])
        else:
            restricted = restrict(
                wanted,
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                forbidden=forbidden,
                allowed=allowed,
            )
            tokens, columns["sampling_logprobs"] = draw(restricted, self.uniforms[rows, at])
        if said.is_exact:
            columns["logprobs"] = chosen_logprobs(logits, tokens)
        return Choice(tokens, columns)

    def _check_dead_end(self, mask: Tensor, choice: Choice, last: Tensor, live: Tensor, at: int) -> None:
        """Refuse what was chosen where there was nothing to choose from.

        Raises:
            DataError: nothing may follow the last token of a sequence that goes on.
        """
        wrong = ~mask[last, choice.tokens]
        is_early = at < self.sampling.min_new_tokens
        if is_early:
            wrong |= (choice.tokens[:, None] == self.eos).any(1)
        if bool((wrong & live).any()):
            token = int(last[wrong & live][0])
            (text,) = decode(self.policy.tokenizer, [[token]], skip_special_tokens=False)
            early = f", EOS not before gen.min_new_tokens = {self.sampling.min_new_tokens}" if is_early else ""
            raise DataError(
                f"logit_mask[{token}]: lets nothing follow token {token} ({text!r}){early}, and a sequence has come to "
                "it; let EOS follow, which ends a sequence, or let no token lead to this one"
            )

    def _ended(self, tokens: Tensor, rows: Tensor, at: int) -> Tensor:
        """Tell which sequences end with their newest token: bool[K]."""
        ended = (tokens[:, None] == self.eos).any(1)
        if self.stops is not None:
            tail = self.stops.tail
            completed = self.stops.completed(tokens.tolist(), lambda i: self._window(int(rows[i]), at + 1, tail))
            if completed:
                ended[completed] = True
        return ended

    def _window(self, row: int, end: int, tail: int) -> tuple[list[int], list[int]]:
        """Return the last `tail` of `end` chosen tokens, and before them CONTEXT tokens of what they follow."""
        begin = max(0, end - tail)
        chosen: list[int] = self.record.tokens[row, max(0, begin - CONTEXT) : end].tolist()
        known = [*self.prompts[row].tokens[-CONTEXT:], *chosen] if begin < CONTEXT else chosen
        split = len(known) - (end - begin)
        return known[max(0, split - CONTEXT) : split], known[split:]
