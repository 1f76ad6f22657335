"""Probes of laws about dists and options; each function is called in a new process.

Also in this file: the objects that entry points name, and the hooks that these implement.

Also in this file: observation of a run through plugin hooks.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import logging
import os
import pickle
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any

import attrs
import pluggy
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from rlcore.components import Component
from rlcore.hookspecs import PROJECT, hookimpl
from rlcore.plugins.discovery import HEAVY
from rlcore.plugins.registry import registries
from rlcore.protocols import Policy, Trainer
from rlcore.training.run import Run
from rlcore.types import PolicyOutputs, Trajectories
from rlcore_testing.law import LawBroken
from rlcore_testing.rig.gradient_noise import GradientNoise
from rlcore_testing.rig.rollouts import Scripted


def watch_import(modules: Sequence[str]) -> dict[str, Any]:
    """Import modules; return the time, the heavy modules that were imported, and the changes to the process."""
    import rlcore.config  # every plugin may import these, so they do not count
    import rlcore.plugins.discovery

    del rlcore
    changes: dict[str, str] = {}
    with _watched(changes):
        start = _time_s()
        for module in modules:
            importlib.import_module(module)
        spent = _time_s() - start
    return {"time_s": spent, "heavy": _heavy(), "changes": changes}


def _time_s() -> float:
    """Return the time without that in which this thread waited for a core of a busy machine, which Linux counts."""
    counts = Path("/proc/thread-self/schedstat")
    waited_ns = int(counts.read_text(encoding="ascii").split()[1]) if counts.exists() else 0
    return time.perf_counter() - waited_ns / 1e9


@contextlib.contextmanager
def _watched(changes: dict[str, str]) -> Iterator[None]:
    """Record the changes that the block makes to the process, in a temporary working folder."""
    sys.path[:] = [os.path.abspath(folder) for folder in sys.path]  # noqa: PTH100  the working folder changes below
    printed, home = io.StringIO(), Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        before, variables = _snapshot(), _watch_environment()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            yield
        after = _snapshot()
        os.chdir(home)
    for what, seen in after.items():
        new, lost = (
            [each for each in seen if each not in before[what]],
            [each for each in before[what] if each not in seen],
        )
        if new or lost:
            changes[what] = "; ".join(f"{how} {_few(which)}" for how, which in (("new", new), ("gone", lost)) if which)
    if variables:
        changes["the environment"] = f"it sets {_few(variables)}"
    if printed.getvalue():
        changes["the output"] = f"it printed {printed.getvalue()[:80]!r}"


def _watch_environment() -> list[str]:
    """Return a list to which the names of variables are appended when they are set.

    Comparing the environment is not enough: this process may inherit the variables from one that imported the plugin.
    """
    names: list[str] = []

    def record(event: str, arguments: tuple[Any, ...]) -> None:
        if event in {"os.putenv", "os.unsetenv"}:
            names.append(os.fsdecode(arguments[0]))

    sys.addaudithook(record)
    return names


def _snapshot() -> dict[str, list[str]]:
    root = logging.getLogger()
    return {
        "the working folder": [str(Path.cwd())],
        "the files in the working folder": sorted(path.name for path in Path.cwd().iterdir()),
        "the random state": [f"number {hash(random.getstate())}"],
        "the root logger": [logging.getLevelName(root.level), *map(repr, root.handlers)],
        "the threads": [f"{thread.name} {thread.ident}" for thread in threading.enumerate()],
        "sys.path": list(sys.path),
    }


def _few(parts: Sequence[str]) -> str:
    return ", ".join(part[:60] for part in parts[:3]) + (", ..." if len(parts) > 3 else "")


def _heavy() -> list[str]:
    return [name for name in HEAVY if name in sys.modules]


def registered(dist: str) -> list[list[str]]:
    """Load the plugins and return kind, name, target, options and summary of each component of a dist."""
    return _registered().get(dist, [])


def seen_by_a_worker() -> dict[str, Any]:
    """Return the attributes of a `rlcore_testing.rig.worker.Spawned` that describe this process."""
    return {"registered": _registered(), "pickles": unpickled()}


def _registered() -> dict[str, list[list[str]]]:
    from rlcore.plugins.discovery import discover

    found: dict[str, list[list[str]]] = {}
    for plugin in discover().plugins:
        found.setdefault(plugin.dist, []).extend(
            [each.kind, each.name, _named(each.reference), _named(each.config_reference), each.summary]
            for each in plugin.components
        )
    return found


def _named(reference: Any) -> str:
    if reference is None or isinstance(reference, str):
        return str(reference)
    return f"{getattr(reference, '__module__', '?')}:{getattr(reference, '__qualname__', type(reference).__qualname__)}"


def pickled(component: Component[Any]) -> bytes:
    """Return the pickle of a component's target and its default options, None if an option has no default."""
    cls: Any = component.config_class()
    lacks = cls is None or any(field.default is attrs.NOTHING for field in attrs.fields(cls))
    return pickle.dumps((component.target(), None if lacks else cls()))


def digest(pickled: bytes) -> str:
    """Return the SHA-256 of a pickle."""
    return hashlib.sha256(pickled).hexdigest()


def unpickled() -> dict[str, str]:
    """Return the digests of the pickles (`dist:kind:name`) that this process unpickles to the component they are of."""
    from rlcore.plugins.registry import all_registries

    found = {}
    for component in all_registries().discovery.components:
        with contextlib.suppress(Exception):  # a component that fails is unpickled again, for the law on its dist
            sent = pickled(component)
            if _is_itself(pickle.loads(sent)[0], component):  # noqa: S301  pickled by this process
                found[f"{component.dist}:{component.kind}:{component.name}"] = digest(sent)
    return found


def _is_itself(target: Any, component: Component[Any]) -> bool:
    """Return whether an unpickled target is the component's own; other objects than classes and functions are new."""
    return not isinstance(target, type | FunctionType) or target is component.target()


def unpack(dist: str, sent: Mapping[str, str]) -> list[str]:
    """Unpickle components of another process (`kind:name` → hex) and describe those that differ from this one's."""
    from rlcore.plugins.registry import all_registries

    known = {
        f"{component.kind}:{component.name}": component
        for plugin in all_registries().discovery.plugins
        if plugin.dist == dist
        for component in plugin.components
    }
    wrong = [f"{name} is not registered in the new process" for name in sent if name not in known]
    for name, pickled in sent.items():
        try:
            target, _ = pickle.loads(bytes.fromhex(pickled))  # noqa: S301  pickled by the parent process
        except Exception as error:  # noqa: BLE001  a plugin's class may raise anything when it is rebuilt
            wrong.append(f"{name} cannot be unpickled, {type(error).__name__}: {error}")
            continue
        if name in known and not _is_itself(target, known[name]):
            wrong.append(f"{name} is another object after unpickling")
    return wrong


def read_options(reference: str) -> dict[str, Any]:
    """Import and describe a class of options as `rlcore show` does; return the heavy modules that were imported."""
    from rlcore.config.options import describe

    module, _, attribute = reference.partition(":")
    target: Any = importlib.import_module(module)
    for part in attribute.split("."):
        target = getattr(target, part)
    return {"options": len(describe(target)), "heavy": _heavy()}


def run_help(command: str) -> dict[str, Any]:
    """Run `rlcore COMMAND --help`; return its exit code, its output and the heavy modules that were imported."""
    from rlcore.cli import main

    printed = io.StringIO()
    code: Any = None
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            code = main([command, "--help"])
        except SystemExit as left:
            code = left.code
    return {"code": code, "printed": printed.getvalue(), "heavy": _heavy()}


def resolve(reference: str) -> Any:
    """Return the module, or its attribute, that the value of an entry point names."""
    module, _, attribute = reference.partition(":")
    found: Any = importlib.import_module(module)
    for part in filter(None, attribute.split(".")):
        found = getattr(found, part)
    return found


def hooks_of(reference: str) -> list[str]:
    """Return the names of the hooks that an entry point's object implements."""
    plugin, known = resolve(reference), pluggy.PluginManager(PROJECT)
    return [name for name in dir(plugin) if known.parse_hookimpl_opts(plugin, name) is not None]


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
