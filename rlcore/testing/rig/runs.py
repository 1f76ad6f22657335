"""Tiny runs, made through `rlcore.train` like anybody's, in plain values so that another process can repeat them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import nn
from transformers import PreTrainedModel

from rlcore.config import merge, unstructure
from rlcore.optim.choose import Optimizers, parameters_of
from rlcore.settings import OptimizerConfig
from rlcore.testing.law import LawBroken, Subject
from rlcore.testing.rig.isolate import call_anew, call_on_two_ranks
from rlcore.testing.rig.rollouts import Scripted, stacking_wider
from rlcore.testing.rig.watch import Watch, watching
from rlcore.testing.small import (
    PROMPTS,
    REWARDS,
    SAMPLES,
    make_bart,
    make_gpt2,
    make_llama,
    make_t5,
    make_tokenizer,
)
from rlcore.training.api import Result, train

INPUTS: dict[str, Any] = {
    "prompts": list(PROMPTS), "samples": [list(sample) for sample in SAMPLES], "rewards": list(REWARDS),
    "reward_fn": "rlcore.testing.small:toy_reward", "metric_fn": "rlcore.testing.rig.runs:count_letters",
    "eval_prompts": list(PROMPTS), "eval_samples": [list(sample) for sample in SAMPLES[:3]],
}  # fmt: skip
"""What can be given to a trainer that needs it, in plain values."""
MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "gpt2": make_gpt2, "llama": make_llama, "t5": make_t5, "dropping_t5": make_t5, "bart": make_bart,
}  # fmt: skip
DROPPING = ("gpt2", "dropping_t5")
DROPOUT = 0.1


def count_letters(outputs: list[str]) -> dict[str, list[float]]:
    """Measure outputs in the simplest way there is."""
    return {"letters": [float(len(output)) for output in outputs]}


@attrs.frozen(kw_only=True)
class Tiny:
    """Describe a tiny run.

    Attributes:
        trainer: its full name.
        options: of the trainer, plain.
        inputs: names of those to be given.
        root: folder the run's own goes into.
        name: of the run.
        steps: when it is over.
        model: one of MODELS; those in DROPPING have dropout, and no parameter of `llama` lacks a gradient.
        rollouts: `sampled` from the policy; `scripted`, the same whatever the policy and however many the processes;
            `scored`, these with the policy's own log-probs; `padded`, those amid meaningless tokens, as demonstrations
            are then, too.
        pad_is_eos: have no padding token but EOS.
        stop_in: number of the step in which Ctrl-C is pressed.
        sections: further sections of the configuration.
    """

    trainer: str
    options: Mapping[str, Any]
    inputs: tuple[str, ...]
    root: str
    name: str = "run"
    steps: int = 3
    model: str = "llama"
    rollouts: str = "sampled"
    pad_is_eos: bool = False
    stop_in: int = 0
    sections: Mapping[str, Any] = attrs.field(factory=dict)

    @classmethod
    def of(cls, subject: Subject, root: str, *, options: Mapping[str, Any] | None = None, **changes: Any) -> Tiny:
        """Describe a run of the trainer under test, with all it needs; `options` instead of the subject's own."""
        given = unstructure(subject.options if options is None else options)
        target: Any = subject.it.target()
        return cls(trainer=subject.it.qualified, options=given, inputs=tuple(target.needs), root=root, **changes)

    def evaluated(self) -> Tiny:
        """Return the same run with something to evaluate on."""
        further = ("eval_prompts", "eval_samples") if "samples" in self.inputs else ("eval_prompts",)
        return attrs.evolve(self, inputs=tuple(dict.fromkeys([*self.inputs, *further])))

    @property
    def dir(self) -> Path:
        """Return the run's folder."""
        return Path(self.root) / self.name

    @property
    def start(self) -> Path:
        """Return the folder that holds the policy as it was before the first step."""
        return Path(self.root) / f"{self.name}-start"


def steady(subject: Subject) -> dict[str, Any]:
    """Return the subject's options with an optimizer that does not make steps of rounding errors.

    AdamW divides a gradient by its own size, so that one of 1e-9 moves a weight as far as one of 1. With eps = 1 it
    moves about in proportion to the gradient: rounding stays small, and a gradient twice too large shows. One that
    takes no eps, as SGD, is left as it is.
    """
    changed = merge(subject.options, {"optimizer": {"lr": 0.1}})
    declared = getattr(subject.config(), "optimizer", None)
    if isinstance(declared, OptimizerConfig):
        takes = parameters_of(Optimizers().get(declared).optimizer)
        changed = merge(changed, {"optimizer": {"eps": 1.0}} if takes is None or "eps" in takes else {})
    return _with_optimizer(subject, changed)


def eager(subject: Subject) -> dict[str, Any]:
    """Return the subject's options with a learning rate that shows in a few steps, unless they set one."""
    return _with_optimizer(subject, merge({"optimizer": {"lr": 1e-2}}, subject.options))


def _with_optimizer(subject: Subject, changed: dict[str, Any]) -> dict[str, Any]:
    declared = isinstance(getattr(subject.config(), "optimizer", None), OptimizerConfig)
    return changed if declared else dict(subject.options)


@attrs.frozen(eq=False)
class Ran:
    """Hold a run that is over, and the watch that was kept."""

    tiny: Tiny
    result: Result
    watch: Watch


def run(tiny: Tiny) -> Ran:
    """Make the run that `tiny` describes, in this process and on one core of its CPU.

    Raises:
        LawBroken: Ctrl-C did not wait for the end of its step.
    """
    scripted = Scripted(scored=tiny.rollouts != "scripted", padded=tiny.rollouts == "padded")
    watch = Watch(tiny.start, None if tiny.rollouts == "sampled" else scripted, tiny.stop_in)
    model = MODELS[tiny.model]()
    for part in model.modules():
        if isinstance(part, nn.Dropout) and tiny.model in DROPPING:
            part.p = DROPOUT
    path = {"path": model, **tiny.sections.get("model", {})}
    defaults: dict[str, Any] = {
        "gen": {"max_new_tokens": 6}, "eval": {"at_end": False}, "checkpoint": {"at_end": False}, "loggers": [],
        "run": {"root": tiny.root, "name": tiny.name, "steps": tiny.steps},
    }  # fmt: skip
    with ExitStack() as stack:
        stack.enter_context(_on_one_core())
        stack.enter_context(watching(watch))
        if tiny.rollouts == "padded":
            stack.enter_context(stacking_wider())
        try:
            result = train(
                trainer={"name": tiny.trainer, **tiny.options},
                tokenizer=make_tokenizer(pad_is_eos=tiny.pad_is_eos),
                **{name: INPUTS[name] for name in tiny.inputs},
                **merge(defaults, {**tiny.sections, "model": path}),
            )
        except KeyboardInterrupt as error:
            if not watch.pressed:
                raise
            raise LawBroken(
                f"expected Ctrl-C in step {tiny.stop_in} to wait for the step's end; it raised KeyboardInterrupt. "
                "Leave SIGINT and SIGTERM to the core"
            ) from error
    return Ran(tiny, result, watch)


def run_anew(tiny: Tiny, what: str) -> None:
    """Make the run in a new process."""
    call_anew("rlcore.testing.rig.runs:run_described", {"description": attrs.asdict(tiny)}, what=what)


def run_on_two_ranks(tiny: Tiny, what: str) -> None:
    """Make the run in two processes that work together."""
    call_on_two_ranks("rlcore.testing.rig.runs:run_described", {"description": attrs.asdict(tiny)}, what=what)


def run_described(description: Mapping[str, Any]) -> int:
    """Make a run that another process describes; return its last step."""
    return run(Tiny(**description)).result.run.step


@contextmanager
def _on_one_core() -> Iterator[None]:
    """Compute alike in every process; and several threads are slower where tensors are this small.

    accelerate is told to look for no GPU, which it heeds in a process that it has not settled in yet.
    """
    threads, before = torch.get_num_threads(), os.environ.get("ACCELERATE_USE_CPU")
    torch.set_num_threads(1)
    os.environ["ACCELERATE_USE_CPU"] = "true"
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if before is None:
            del os.environ["ACCELERATE_USE_CPU"]
        else:
            os.environ["ACCELERATE_USE_CPU"] = before
