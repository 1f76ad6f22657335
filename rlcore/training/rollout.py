"""Sample and score together, so that reward functions can work while the policy is still sampling.

A sampler that tells of finished sub-batches has them scored in a thread of its own while it goes on. Functions that
return at once run there one after another; what is to be awaited runs on the event loop of `rlcore.rewards.calls`, as
many at a time as there are. The thread ends with the call.
"""

from __future__ import annotations

import contextvars
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Self

import attrs
import torch

from rlcore.logging import get_logger
from rlcore.profiling import phase, timed
from rlcore.rewards.calls import Call
from rlcore.rewards.combine import RewardBatch, Rewards
from rlcore.rewards.score import Scored, Scorer, scored
from rlcore.sampling.inputs import takes_on_batch
from rlcore.settings import TrainConfig
from rlcore.types import Prompt, Trajectories

PATIENCE_S = 1.0
"""How long Ctrl-C waits for a reward function in progress, which nothing can interrupt in its thread."""


def overlaps(config: TrainConfig, sampler: Callable[..., Trajectories]) -> bool:
    """Tell whether rewards are to be asked for while sampling goes on; warn where that is wanted and cannot be."""
    if not config.run.overlap_rewards:
        return False
    told = takes_on_batch(sampler)
    if not told or not config.gen.batch_size:
        why = "gen.batch_size = 0 samples all at once" if told else "the sampler does not tell of finished sub-batches"
        get_logger("collecting").warning("rewards wait for sampling in spite of run.overlap_rewards", reason=why)
    return told


def collect(
    sample: Callable[..., Trajectories], scorer: Scorer, prompts: Sequence[Prompt], *, overlap: bool
) -> tuple[Trajectories, Scored]:
    """Continue each prompt once, and score what came of it.

    Args:
        sample: `sample(prompts)`; `sample(prompts, on_batch=...)` where it shall tell of sub-batches.
        scorer: asks the reward functions.
        prompts: B prompts.
        overlap: score sub-batches while later ones are being sampled. Numbers and errors are those of scoring the whole
            afterwards, as long as the functions judge each sample by itself.

    Raises:
        RewardError: a reward function raised, or returned what cannot be used; sampling then stops early.
        DataError: a sequence without a chosen token.
    """
    begun = time.perf_counter()
    if overlap and scorer.rewards is not None:
        with _Overlap(scorer, scorer.rewards, prompts) as asked:
            batch = sample(prompts, on_batch=asked.about)
            sampled = time.perf_counter()
            said = asked.scored(batch)
    else:
        batch = sample(prompts)
        sampled = time.perf_counter()
        said = scorer(prompts, batch)
    times = {"time/sample_s": sampled - begun, "time/score_s": time.perf_counter() - sampled}
    return batch, attrs.evolve(said, times=times)


@attrs.define(eq=False)
class _Part:
    """Hold a sub-batch that the functions are asked about.

    Attributes:
        rows: places of its samples in the batch.
        outputs: their texts.
        output_tokens: the ids behind each.
        call: the functions, once they have been called.
        said: their answers, once they have been read.
    """

    rows: Sequence[int]
    outputs: Sequence[str]
    output_tokens: Sequence[Sequence[int]]
    call: Future[Call] = attrs.field(factory=Future)
    said: RewardBatch | None = None


class _Overlap:
    """Ask about sub-batches, in the order they come, in a thread that lives as long as the `with` block.

    What else belongs to a thread, it has from the caller: context variables, gradient mode and device.
    """

    def __init__(self, scorer: Scorer, rewards: Rewards, prompts: Sequence[Prompt]) -> None:
        self._scorer, self._rewards, self._prompts = scorer, rewards, prompts
        self._parts: list[_Part] = []
        self._waiting: queue.SimpleQueue[_Part | None] = queue.SimpleQueue()
        self._device: torch.device | None = None
        grad, context = torch.is_grad_enabled(), contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._work, grad), name="rlcore-overlap", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for part in self._parts:
            part.call.cancel()  # where its turn has not come
        self._waiting.put(None)
        self._thread.join(None if error is None or isinstance(error, Exception) else PATIENCE_S)
        for part in self._parts:
            if part.call.done() and not part.call.cancelled() and part.call.exception() is None:
                part.call.result().cancel()

    @timed("reward")
    def about(self, rows: Sequence[int], batch: Trajectories) -> None:
        """Have the samples at `rows` scored; the thread comes to them when it is done with those before.

        Args:
            rows: K places in the batch.
            batch: K trajectories.

        Raises:
            RewardError: a function failed at samples before.
            DataError: a sequence without a chosen token.
        """
        outputs = self._scorer.spell(self._prompts, batch, rows)
        self._device = batch.tokens.device
        part = _Part(list(rows), outputs, batch.action_tokens)
        self._parts.append(part)
        self._waiting.put(part)
        for earlier in self._parts:
            if earlier.said is None and earlier.call.done() and earlier.call.result().is_done:
                earlier.said = self._rewards.read(earlier.call.result())

    @timed("reward")
    def scored(self, batch: Trajectories) -> Scored:
        """Wait for all answers; samples the sampler has not told of are asked about now."""
        told = {row for part in self._parts for row in part.rows}
        left = [row for row in range(len(batch)) if row not in told]
        if left:
            self.about(left, batch.rows(torch.tensor(left, device=batch.tokens.device)))
        outputs = [""] * len(batch)
        said: list[tuple[Sequence[int], RewardBatch]] = []
        for part in self._parts:
            with phase("awaiting"):
                call = part.call.result()
            said.append((part.rows, self._rewards.read(call) if part.said is None else part.said))
            for row, output in zip(part.rows, part.outputs, strict=True):
                outputs[row] = output
        return scored(batch, outputs, RewardBatch.together(said, batch.num_actions.tolist()))

    def _work(self, grad: bool) -> None:
        torch.set_grad_enabled(grad)
        while (part := self._waiting.get()) is not None:
            if self._device is not None and self._device.index is not None:
                torch.accelerator.set_device_index(self._device.index)
            if not part.call.set_running_or_notify_cancel():
                continue
            try:
                call = self._rewards.begin(
                    self._prompts, part.outputs, tokenizer=self._scorer.tokenizer, output_tokens=part.output_tokens,
                    where=self._scorer.where, rows=part.rows,
                )  # fmt: skip
            except BaseException as error:  # noqa: BLE001  raised where the answer is waited for
                part.call.set_exception(error)
            else:
                part.call.set_result(call)
