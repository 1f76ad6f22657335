"""The built-in sampler: any policy that can decode, drawn from one token at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from rlcore.models.dropout import eval_mode
from rlcore.protocols import Decoder, DecodeStep, Policy, joins
from rlcore.sampling.inputs import as_prompts, check_options, decoding_order, takes_waiting, token_limits
from rlcore.sampling.next_token import TokenChooser
from rlcore.sampling.record import Record
from rlcore.sampling.running import Running
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories, tensor_on, to_device

LEAVE_SHARE = 8
"""Finished sequences leave the running batch once they are one in so many of it: copying what stays then pays."""
READ_EVERY = {"cpu": 1, "cuda": 8}
"""Tokens after which a device is options which sequences go on; the program waits for an accelerator each time."""
JOIN_SHARE = 4
"""Prompts that wait join once one place in so many is free: reading them takes a pass of its own."""


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

    No more than `batch_size` sequences run at once, the longest prompts first. Where the decoder can take them in
    (`rlcore.protocols.JoiningDecoder`), prompts that wait join as soon as enough places are free; elsewhere a
    batch runs to its end before the next begins.

    With `sampling.beta` tokens are drawn from softmax(log pi + beta A), A being the advantages the policy's Q-heads
    give the tokens, and everything else acts on that.

    Args:
        policy: sampled in evaluation mode, and put back as it was.
        prompts: N prompts, or strings for the policy's tokenizer.
        sampling: how tokens are drawn.
        generator: source of the random numbers; torch's own if left out.
        logit_mask: bool[V, V], in row i True where a token may come next after token i; all may if left out.
        on_batch: called with indices in `prompts` and their finished trajectories, as soon as a group of about
            `batch_size` of them is finished; every index comes once. The policy is in evaluation mode then.

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
    ready = as_prompts(policy, prompts)
    limits = token_limits(ready, sampling.max_new_tokens, policy.max_length)
    longest = max(limits, default=0)
    uniforms = None
    if sampling.temperature > 0:
        source = generator.device if generator is not None else torch.device("cpu")
        uniforms = torch.rand(len(ready), longest, dtype=torch.float64, generator=generator, device=source)
        uniforms = to_device(uniforms, policy.device)
    names = ("logprobs",) if sampling.is_plain and logit_mask is None else ("logprobs", "sampling_logprobs")
    record = Record(len(ready), longest, policy.device, () if ready else names)
    pad_id = policy.tokenizer.pad_token_id
    pad_id = pad_id if isinstance(pad_id, int) else 0

    def report(indices: list[int]) -> None:
        if on_batch is not None:
            rows = torch.tensor(indices, device=policy.device)
            on_batch(indices, record.trajectories([ready[index] for index in indices], pad_id, rows))

    mask = None if logit_mask is None else to_device(logit_mask, policy.device)
    chooser = TokenChooser(policy, sampling, ready, uniforms, mask, record)
    size = sampling.batch_size or len(ready)
    loop = _Loop(policy, ready, limits, chooser, size, decoding_order(ready, size), report)
    with torch.no_grad(), eval_mode(policy.module):
        loop.run()
    return record.trajectories(ready, pad_id)


@attrs.define(eq=False)
class _Loop:
    """Continue prompts to their ends, so many at once.

    Attributes:
        policy: sampled.
        prompts: N prompts.
        limits: tokens each may be continued by.
        chooser: draws tokens and records them.
        size: how many sequences run at once.
        waiting: indices of the prompts that have not begun, the longest first.
        report: is called with indices of prompts that are finished.
    """

    policy: Policy
    prompts: Sequence[Prompt]
    limits: Sequence[int]
    chooser: TokenChooser
    size: int
    waiting: deque[int]
    report: Callable[[list[int]], None]
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
        """Draw tokens until every sequence of the decoder has ended or been cut, and all that join on the way."""
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
                # Those that are cut leave at once: their contexts may have no room for even one more token.
                if num_finished * LEAVE_SHARE >= len(running.indices) or (num_finished and running.is_cut):
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
        """Begin with the next prompts that wait, so many at most."""
        indices = [self.waiting.popleft() for _ in range(min(number, len(self.waiting)))]
        limits, last = [self.limits[index] for index in indices], [self.prompts[index].tokens[-1] for index in indices]
        return Running.begin(indices, limits, last, self.policy.device, passes)

    def _tokens(self, running: Running) -> list[tuple[int, ...]]:
        return [self.prompts[index].tokens for index in running.indices]

    def _leave(self, indices: list[int]) -> None:
        """Tell of finished sequences once there are as many as run at once, or none to come."""
        self._finished += indices
        if self._finished and (len(self._finished) >= self.size or not indices):
            self.report(sorted(self._finished))
            self._finished = []


def _together(outputs: DecodeStep, more: DecodeStep) -> DecodeStep:
    """Return what is said of some sequences, and of others behind them."""
    values, advantages = (
        None if before is None or behind is None else torch.cat([before, behind])
        for before, behind in ((outputs.values, more.values), (outputs.advantages, more.advantages))
    )
    return DecodeStep(torch.cat([outputs.logits, more.logits]), values, advantages, outputs.is_exact and more.is_exact)
