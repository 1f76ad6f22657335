"""Watch a run from the inside, by the hooks that any plugin has."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from rlcore.components import Component
from rlcore.hookspecs import hookimpl
from rlcore.plugins.registry import registries
from rlcore.protocols import Policy, Trainer
from rlcore.testing.law import LawBroken
from rlcore.testing.rig.rollouts import Scripted
from rlcore.training.run import Run
from rlcore.types import Trajectories


class Watch:
    """Watch one run as a plugin would: note what it hears, keep the trainer, stand in for the sampler, press Ctrl-C.

    Args:
        start: folder that the policy is saved to before the first step.
        sampler: instead of the run's; None leaves that alone.
        stop_in: number of the step in which Ctrl-C is pressed; 0 for none.

    Attributes:
        heard: each observer hook that was called, with what it was told besides the run.
        before: every parameter of the policy before the first step.
        frozen: names of those that were not to train when the policy was built.
        pressed: Ctrl-C has been pressed.
    """

    def __init__(self, start: Path, sampler: Scripted | None, stop_in: int) -> None:
        self.start, self.sampler, self.stop_in = start, sampler, stop_in
        self.heard: list[tuple[str, Any]] = []
        self.before: dict[str, torch.Tensor] = {}
        self.frozen: set[str] = set()
        self.trainer: Trainer
        self._built: list[tuple[nn.Module, set[str]]] = []
        self.pressed = False
        self._steps = -1  # what runs before the first step, as a check of the model may, is in no step

    @hookimpl
    def wrap_component(self, component: Component[Any]) -> Callable[[Any], Any] | None:
        """Keep the trainer, see what of a policy is frozen, and stand in for the sampler if rollouts are scripted."""
        if component.kind == "trainers":
            return self._keep
        if component.kind == "architectures":
            return self._inspect
        return (lambda _: self.sampler) if component.kind == "samplers" and self.sampler is not None else None

    def _keep(self, trainer: Trainer) -> Trainer:
        self.trainer = trainer
        return trainer

    def _inspect(self, policy: Policy) -> Policy:
        names = {name for name, weight in policy.module.named_parameters() if not weight.requires_grad}
        self._built.append((policy.module, names))
        return policy

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        """Keep the policy as it is now."""
        self.heard.append(("on_run_start", run.step))
        self._steps = run.step
        if self.sampler is not None:
            self.sampler.ranks = run.ranks
        policy = self.trainer.policy()
        self.before = {name: weight.detach().clone() for name, weight in policy.module.named_parameters()}
        self.frozen = next((names for module, names in self._built if module is policy.module), set())
        if run.ranks.is_main:
            policy.save_pretrained(self.start)

    @hookimpl
    def on_rollout(self, batch: Trajectories) -> None:
        """Note it."""
        self.heard.append(("on_rollout", batch))

    @hookimpl
    def on_step(self, metrics: Mapping[str, float]) -> None:
        """Note it."""
        self._steps += 1
        self.heard.append(("on_step", dict(metrics)))

    @hookimpl
    def on_evaluate(self, metrics: Mapping[str, float]) -> None:
        """Note it."""
        self.heard.append(("on_evaluate", dict(metrics)))

    @hookimpl
    def on_checkpoint(self, path: Path) -> None:
        """Note it."""
        self.heard.append(("on_checkpoint", path.name))

    @hookimpl
    def on_run_end(self, error: BaseException | None) -> None:
        """Note it."""
        self.heard.append(("on_run_end", error))

    def told(self, hook: str) -> list[Any]:
        """Return what `hook` was told each time."""
        return [what for name, what in self.heard if name == hook]

    def press(self, *_: Any) -> None:
        """Press Ctrl-C, once, if the step in progress is the one; called before every module's forward pass."""
        if self._steps + 1 == self.stop_in and not self.pressed:
            self.pressed = True
            signal.raise_signal(signal.SIGINT)


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Have the runs made here watched, as by one more plugin."""
    hooks = registries().discovery.hooks
    if hooks.has_plugin("rlcore:watch"):
        raise LawBroken("a run is being made within a run that is being watched: a trainer must not start runs itself")
    hooks.register(watch, name="rlcore:watch")
    handle = register_module_forward_pre_hook(watch.press) if watch.stop_in else None
    try:
        yield
    finally:
        if handle is not None:
            handle.remove()
        hooks.unregister(watch)
