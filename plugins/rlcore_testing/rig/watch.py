"""Observation of a run through plugin hooks."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from rlcore.components import Component
from rlcore.hookspecs import hookimpl
from rlcore.plugins.registry import registries
from rlcore.protocols import Policy, Trainer
from rlcore.training.run import Run
from rlcore.types import PolicyOutputs, Trajectories
from rlcore_testing.law import LawBroken
from rlcore_testing.rig.gradient_noise import GradientNoise
from rlcore_testing.rig.rollouts import Scripted


class Watch:
    """A plugin that records hook calls of one run, keeps its trainer, replaces its sampler and presses Ctrl-C.

    Args:
        start: folder in which the policy is saved before the first step.
        sampler: replacement for the run's sampler; None keeps it.
        stop_in: step in which Ctrl-C is pressed; 0 for none.
        nudged: `first` or `last`, to change the reference's log-prob of that token of each output.

    Attributes:
        calls: name and argument (other than the run) of each observer hook that was called.
        before: parameters of the policy before the first step.
        frozen: names of the parameters that required no gradient when the policy was built.
        rates: after each step, the learning rate that each schedule of `run.updater` has next.
        pressed: whether Ctrl-C has been pressed.
        spoiler: puts a bad number into the outputs of policies, or None (`rlcore_testing.rig.rollouts.Spoiler`).
        noise: adds noise to gradients, or None.
        uses_reference: whether log-probs of the reference, and not its logits, have been computed.
    """

    def __init__(self, start: Path, sampler: Scripted | None, stop_in: int, nudged: str = "") -> None:
        self.start, self.sampler, self.stop_in, self.nudged = start, sampler, stop_in, nudged
        self.uses_reference = False
        self.calls: list[tuple[str, Any]] = []
        self.before: dict[str, torch.Tensor] = {}
        self.frozen: set[str] = set()
        self.trainer: Trainer
        self.rates: list[list[float]] = []
        self._built: list[tuple[nn.Module, set[str]]] = []
        self._schedules: list[LRScheduler] = []
        self.pressed = False
        self.spoiler: Any = None
        self.noise: GradientNoise | None = None
        self._steps = -1  # updates before the first step belong to no step

    @hookimpl
    def wrap_component(self, component: Component[Any]) -> Callable[[Any], Any] | None:
        """Keep the trainer and schedules, record frozen parameters of policies, and replace the sampler if scripted."""
        if component.kind == "trainers":
            return self._keep
        if component.kind == "architectures":
            return self._inspect
        if component.kind == "schedulers":
            return self._keep_schedules
        return (lambda _: self.sampler) if component.kind == "samplers" and self.sampler is not None else None

    def _keep(self, trainer: Trainer) -> Trainer:
        self.trainer = trainer
        return trainer

    def _inspect(self, policy: Policy) -> Policy:
        names = {name for name, weight in policy.module.named_parameters() if not weight.requires_grad}
        self._built.append((policy.module, names))
        if self.spoiler is not None:
            self.spoiler.spoil(policy)
        if self.sampler is not None and hasattr(policy, "reference_score"):
            policy.reference_score = self._nudging(policy.reference_score)  # type: ignore[method-assign]
        return policy

    def _nudging(self, score: Callable[..., PolicyOutputs]) -> Callable[..., PolicyOutputs]:
        def nudge(batch: Trajectories, **options: Any) -> PolicyOutputs:
            outputs, chosen = score(batch, **options), batch.action_mask
            self.uses_reference |= not options.get("logits", False)
            count = chosen.cumsum(1)
            place = {"": 0, "first": 1, "last": count[:, -1:]}[self.nudged]
            return attrs.evolve(
                outputs, logprobs=outputs.logprobs - (chosen & (count == place)) * (1 + batch.tokens % 3)
            )

        return nudge

    def _keep_schedules(self, build: Callable[..., LRScheduler]) -> Callable[..., LRScheduler]:
        def keep(*arguments: Any, **options: Any) -> LRScheduler:
            self._schedules.append(build(*arguments, **options))
            return self._schedules[-1]

        return keep

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        """Save the policy and record its parameters."""
        self.calls.append(("on_run_start", run.step))
        self._steps = run.step
        if self.sampler is not None:
            self.sampler.ranks = run.ranks
        policy = self.trainer.policy()
        self.before = {name: weight.detach().clone() for name, weight in policy.module.named_parameters()}
        self.frozen = next((names for module, names in self._built if module is policy.module), set())
        if self.spoiler is not None and self.spoiler.rank == run.ranks.rank:
            self.spoiler.watch(policy.module)
        if self.noise is not None:
            self.noise.watch(policy.module)
        if run.ranks.is_main:
            policy.save_pretrained(self.start)

    @hookimpl
    def on_rollout(self, batch: Trajectories) -> None:
        """Record the call."""
        self.calls.append(("on_rollout", batch))

    @hookimpl
    def on_step(self, metrics: Mapping[str, float]) -> None:
        """Record the call; press Ctrl-C if the step made no update."""
        self.press()
        self._steps += 1
        self.rates.append([float(schedule.get_last_lr()[0]) for schedule in self._schedules])
        self.calls.append(("on_step", dict(metrics)))

    @hookimpl
    def on_evaluate(self, metrics: Mapping[str, float]) -> None:
        """Record the call."""
        self.calls.append(("on_evaluate", dict(metrics)))

    @hookimpl
    def on_checkpoint(self, path: Path) -> None:
        """Record the call."""
        self.calls.append(("on_checkpoint", path.name))

    @hookimpl
    def on_run_end(self, error: BaseException | None) -> None:
        """Record the call."""
        self.calls.append(("on_run_end", error))

    def arguments_of(self, hook: str) -> list[Any]:
        """Return the argument of each call of `hook`."""
        return [argument for name, argument in self.calls if name == hook]

    def press(self, *_: Any) -> None:
        """Press Ctrl-C once in the step `stop_in`; called before every step of an optimizer."""
        if self._steps + 1 == self.stop_in and not self.pressed:
            self.pressed = True
            signal.raise_signal(signal.SIGINT)


class GradientWatch(Watch):
    """A watch that also records which log-probs of `policy.score` a loss depends on.

    Attributes:
        learned: `first` and `last` → whether the log-prob of the first, or last, of several chosen tokens of a sequence
            has ever got a gradient; empty as long as no log-prob has.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.learned: dict[str, bool] = {}

    def _inspect(self, policy: Policy) -> Policy:
        policy = super()._inspect(policy)
        if hasattr(policy, "reference_score"):
            policy.score = self._following(policy.score)  # type: ignore[method-assign]
        return policy

    def _following(self, score: Callable[..., PolicyOutputs]) -> Callable[..., PolicyOutputs]:
        def follow(batch: Trajectories, **options: Any) -> PolicyOutputs:
            outputs = score(batch, **options)
            if outputs.logprobs.requires_grad:
                outputs.logprobs.register_hook(lambda gradient: self._note(batch.action_mask, gradient))
            return outputs

        return follow

    def _note(self, chosen: torch.Tensor, gradient: torch.Tensor) -> None:
        count = chosen.cumsum(1)
        several = chosen & (count[:, -1:] > 1) & (gradient != 0)
        if not bool(several.any()):
            return
        for name, place in (("first", count == 1), ("last", count == count[:, -1:])):
            self.learned[name] = self.learned.get(name, False) or bool((several & place).any())


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Register `watch` as a plugin for the runs in the block."""
    hooks = registries().discovery.hooks
    if hooks.has_plugin("rlcore:watch"):
        raise LawBroken("a trainer must not start runs itself: another run is in progress")
    hooks.register(watch, name="rlcore:watch")
    wanted = [watch.press] if watch.stop_in else []
    if watch.noise is not None:
        wanted.append(watch.noise.add)
    handles = [register_optimizer_step_pre_hook(each) for each in wanted]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        hooks.unregister(watch)
