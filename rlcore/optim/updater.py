"""The update of a policy: backward passes of micro-batches, gradient clipping, optimizer step, schedule.

Also in this file: averages of metrics over micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import attrs
import torch
from torch import Tensor

from rlcore import ops
from rlcore.data.order import OrderedRows
from rlcore.errors import ConfigError
from rlcore.logging import get_logger
from rlcore.ops import eval_mode
from rlcore.optim.optimization import BuiltOptions, Optimization, Optimizers, ScheduleClock, with_rate
from rlcore.profiling import phase, timed
from rlcore.protocols import Learner, Policy, Sharding
from rlcore.ranks import Ranks
from rlcore.ranks.rounds import Round, micro_batches
from rlcore.settings import OptimizerConfig
from rlcore.sharding import WholeModel, by_block
from rlcore.types import Metrics, Sample, State, Trajectories, stack_samples


class Meter:
    """Sum metrics on the device; nothing is copied to the host before `means` is called."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks, self._names = ranks, ["count"]
        self._sums: Tensor | None = None
        self._noted: dict[str, list[Tensor]] = {}

    @property
    def is_empty(self) -> bool:
        """Return whether nothing has been added."""
        return self._sums is None

    @timed("metrics")
    def add(self, chosen: Tensor, values: Mapping[str, Tensor]) -> None:
        """Add one number per token, sequence or group, where `chosen` (bool, of the same shape) is True."""
        self._names = ["count", *values]
        measured = torch.stack([chosen.float(), *values.values()])
        self._accumulate(measured.masked_fill(~chosen, 0.0).flatten(1).sum(1, dtype=torch.float64))

    def note(self, name: str, value: Tensor) -> None:
        """Add one number of an optimizer step, equal on all ranks; `means` weighs every step alike."""
        self._noted.setdefault(name, []).append(value)

    def merge(self, other: Meter) -> None:
        """Add everything that another meter has summed."""
        for name, values in other._noted.items():
            self._noted.setdefault(name, []).extend(values)
        if other._sums is not None:
            self._names = other._names
            self._accumulate(other._sums)

    def _accumulate(self, sums: Tensor) -> None:
        self._sums = sums if self._sums is None else self._sums + sums

    @timed("metrics")
    def means(self) -> dict[str, float]:
        """Return the average of each metric over all entries on all ranks, and of each noted number over steps."""
        noted = {name: sum(map(float, values)) / len(values) for name, values in self._noted.items()}
        if self._sums is None:
            return noted
        count, *sums = self._ranks.sum(self._sums).tolist()
        means = {name: value / max(count, 1.0) for name, value in zip(self._names[1:], sums, strict=True)}
        return means | noted


@torch.no_grad()
def validate(
    policy: Policy,
    samples: Sequence[Sample],
    measure: Callable[[Trajectories], Mapping[str, Tensor]],
    ranks: Ranks,
    *,
    batch_size: int,
    size: int = 0,
    tokens: int = 0,
) -> Metrics:
    """Return the mean of each metric over the chosen tokens of held-out samples, measured as training measures batches.

    The policy is in evaluation mode.

    Args:
        policy: what `measure` calls.
        samples: the same on all ranks; with `/` and its name, metrics of each source of a mixture are returned too.
        measure: returns the metrics of a micro-batch, each float[B, T].
        ranks: each measures its share.
        batch_size: samples that are padded together, on all ranks.
        size: samples of one forward pass on a rank at the most; 0 sets no bound.
        tokens: tokens of one forward pass at the most, padding included; 0 sets no bound.
    """
    whole, metrics = Meter(ranks), Metrics()
    for source, rows in (samples.parts() if isinstance(samples, OrderedRows) else {"": samples}).items():
        meter = Meter(ranks)
        with eval_mode(policy.module), by_block(policy):
            for start in range(0, len(rows), batch_size):
                batch = stack_samples(rows[start : start + batch_size]).to(ranks.device)
                for part, _ in micro_batches(batch, size, ranks, tokens=tokens):
                    meter.add(part.action_mask, measure(part))
        whole.merge(meter)
        metrics |= {f"{name}/{source}": mean for name, mean in (meter.means() if source else {}).items()}
    return whole.means() | metrics


Loss = Callable[[Trajectories], tuple[Tensor, Mapping[str, Tensor]]]
"""`loss(part)` returns the losses of a micro-batch, and metrics of the same shape."""


class Updater:
    """The optimizer and the learning-rate schedule of one policy or scorer.

    `num_updates` and `num_skipped` count optimizer steps made and skipped. A step is skipped where the norm of the
    gradient is not finite.

    `accumulate` adds the gradient of a batch; `step` or `skip` follows. A trainer whose loss does not fit `accumulate`
    calls its parts, `exchanging` and `backward`. The loss passed to `backward` must be a *sum over tokens divided by
    their number in the whole batch, on all ranks*; then neither micro-batches nor ranks change the gradient.

    Args:
        policy: its parameters with `requires_grad` are trained.
        config: names the optimizer and the schedule.
        ranks: this process's place among the others.
        total_updates: optimizer steps planned for the whole run, None where only time bounds it.
        updates_per_step: optimizer steps planned for each step of the run (`rlcore.optim.optimization`).
        steps_done: returns the number of steps of the run that are done; if omitted, the schedule counts the optimizer
            steps made.
        optimization: the optimizer and schedule that `config` names, if they have been looked up already.
        sharding: where weights, gradients and optimizer state lie; by default whole on every process.
    """

    def __init__(
        self,
        policy: Learner,
        config: OptimizerConfig,
        ranks: Ranks,
        *,
        total_updates: int | None,
        updates_per_step: int = 1,
        steps_done: Callable[[], int] = lambda: 0,
        optimization: Optimization | None = None,
        sharding: Sharding | None = None,
    ) -> None:
        built, config = optimization or Optimizers().get(config), with_rate(config, policy)
        built = attrs.evolve(built, config=config)
        self.config, self.ranks, self.num_skipped, self._policy = config, ranks, 0, policy
        self._steps_done, self._rate = steps_done, (-1, 0.0)
        self._has_warned = False
        if not any(p.requires_grad for p in policy.module.parameters()):
            raise ConfigError(
                "nothing trains: every parameter of the model is frozen. Load its adapter to be trained, as in "
                "PeftModel.from_pretrained(model, folder, is_trainable=True), or give the model without it and the "
                "folder as model.peft; in a model without an adapter, raise model.unfrozen_layers"
            )
        self.sharding: Sharding = sharding or WholeModel(ranks)
        self.parameters = self.sharding.cut(policy)
        _warn_of_low_precision(self.parameters)
        matrices = [p for p in self.parameters if p.dim() > 1]
        vectors = [p for p in self.parameters if p.dim() <= 1]
        groups: list[dict[str, object]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
        optimizer = built.build([group for group in groups if group["params"]])
        self.scheduler = built.schedule(optimizer, total_updates)
        self.clock = ScheduleClock(
            self.scheduler, num_warmup=config.warmup_steps, updates_per_step=updates_per_step, steps_done=steps_done,
            options=built.course(total_updates),
        )  # fmt: skip
        self._options = BuiltOptions(built, optimizer, len(matrices))
        self.optimizer = self.sharding.drive(optimizer)

    @property
    def device(self) -> torch.device:
        """Return this process's device."""
        return self.ranks.device

    def meter(self) -> Meter:
        """Return an empty sum of metrics over all processes."""
        return Meter(self.ranks)

    @property
    def num_updates(self) -> int:
        """Return the number of optimizer steps made."""
        return self.clock.num_made

    @property
    def lr(self) -> float:
        """Return the learning rate of the last optimizer step in the present step of the run.

        If there has been none, because all were left out, it is that of the next one.
        """
        step, rate = self._rate
        return rate if step == self._steps_done() else self.clock.learning_rate()

    def accumulate(
        self,
        batch: Trajectories | Round,
        loss: Loss,
        meter: Meter | None = None,
        *,
        size: int = 0,
        tokens: int = 0,
        group: int = 1,
        count: float | Tensor | None = None,
    ) -> Tensor:
        """Add the gradient of a batch's mean loss, one micro-batch after another.

        Args:
            batch: a round, or sequences that every rank holds.
            loss: returns the losses of a part, one for each chosen token (float[B, T]; other entries may be anything),
                each sequence (float[B]) or each group (float[B / group]), and metrics of the same shape. If one of
                these numbers is not finite where it counts, the gradient becomes NaN, and `step` is skipped.
            meter: adds up the metrics.
            size: sequences of a part at the most; 0 sets no bound.
            tokens: tokens of a part at the most, padding included; 0 sets no bound.
            group: so many consecutive sequences stay together in a part, in their order.
            count: what the sum of losses is divided by; the number of losses of the whole batch if absent.

        Returns:
            The count.
        """
        total = torch.as_tensor(0 if count is None else count)
        for part, last in micro_batches(batch, size, self.ranks, tokens=tokens, group=group):
            with self.exchanging(last):
                losses, metrics = loss(part)
                unit = 0 if losses.dim() == 2 else len(part) // len(losses)
                counted = _counted(part, unit)
                if count is None:
                    total = ((batch.num_actions > 0).view(-1, unit).any(1) if unit else batch.num_actions).sum()
                # The reduction: a sum over chosen tokens (or sequences, or groups), divided by their number in the
                # whole batch on all ranks; never a mean of micro-batch means.
                sound = ops.soundness(counted, losses, *metrics.values())
                self.backward(ops.masked_sum(losses, counted) / total * sound)
            if meter is not None and metrics:
                meter.add(counted, {name: each.detach() for name, each in metrics.items()})
        return total

    @contextmanager
    def exchanging(self, last: bool) -> Iterator[None]:
        """Return a context for a micro-batch's forward and backward pass; ranks exchange gradients in the last one.

        Raises:
            RanksError: a parameter received no gradient in the step before, so that the ranks could not exchange it.
        """
        with phase("update"), self.sharding.exchanging(last):
            yield

    @timed("update")
    @timed("backward")
    def backward(self, loss: Tensor) -> None:
        """Add the gradient of one micro-batch's loss."""
        self.sharding.backward(loss)

    @timed("optimizer")
    def step(self, meter: Meter | None = None) -> Tensor | None:
        """Clip, step, advance the schedule and clear the gradients; return the norm before clipping, if it clips.

        The norm is noted in `meter` too, as `grad/norm`.
        """
        self._rate = self._steps_done(), self.clock.learning_rate()
        norm = self.sharding.step(self.config.max_grad_norm)
        if norm is not None and meter is not None:
            meter.note("grad/norm", norm)
        self._policy.version += 1
        if self.sharding.was_skipped:
            self._note_skipped(norm)
        else:
            self.clock.advance()
        return norm

    def _note_skipped(self, norm: Tensor | None) -> None:
        """Count a skipped step, and warn of the first one unless the scale of fp16 explains it, which is lowered."""
        self.num_skipped += 1
        if not self._has_warned and self.ranks.accelerator.scaler is None:
            self._has_warned = True
            get_logger("optim").warning(
                "an optimizer step is skipped: the gradient is not finite; the metric grad/skipped counts such steps",
                norm=None if norm is None else float(norm),
            )

    def skip(self) -> None:
        """Discard the gradients instead of making a step, and count it in `num_skipped`."""
        self.sharding.discard()
        self.num_skipped += 1

    def state_dict(self) -> State:
        """Return the states of optimizer, schedule and gradient scaler, and the counts."""
        return {
            "optimizer": self.sharding.state_dict(),
            "schedule": self.clock.state_dict(),
            "scaler": None if self.ranks.accelerator.scaler is None else self.ranks.accelerator.scaler.state_dict(),
            "num_skipped": self.num_skipped,
            "built": self._options.record,
        }

    def load_state_dict(self, state: State) -> None:
        """Restore the state that `state_dict` returned; options of optimizer and schedule stay those of `config`.

        Raises:
            CheckpointError: the options need state that the saved optimizer has not kept, or other parameters train.
        """
        self._options.check_parameters(state["optimizer"])
        self._options.reset()
        is_other = self.clock.load_state_dict(state["schedule"])
        self.sharding.load_state_dict(
            self._options.applied(state["optimizer"], state.get("built"), has_other_schedule=is_other)
        )
        if state["scaler"] is not None and self.ranks.accelerator.scaler is not None:
            self.ranks.accelerator.scaler.load_state_dict(state["scaler"])
        self.num_skipped = state["num_skipped"]


def _counted(batch: Trajectories, unit: int) -> Tensor:
    """Return which entries of a loss count: chosen tokens where `unit` is 0, else groups of so many sequences.

    A sequence without a chosen token stands in where a rank's share is short, and counts for nothing.
    """
    return (batch.num_actions > 0).view(-1, unit).any(1) if unit else batch.action_mask


def _warn_of_low_precision(parameters: Sequence[Tensor]) -> None:
    """Warn that weights in bfloat16 or float16 round away most updates at usual learning rates."""
    low = sorted({str(p.dtype) for p in parameters if p.dtype in (torch.bfloat16, torch.float16)})
    if low:
        get_logger("optim").warning(
            "weights of few bits lose small updates; model.dtype=float32 with run.mixed_precision=bf16 keeps them",
            dtype=", ".join(low),
        )
