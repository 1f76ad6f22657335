"""Short runs through `rlcore.train`, described by plain values so that another process can repeat them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import nn
from transformers import PreTrainedModel

from rlcore.components import LANGUAGE_MODEL, SCORER, Component
from rlcore.config import merge, structure, unstructure
from rlcore.optim.optimization import Optimizers, parameters_of
from rlcore.plugins.registry import registries
from rlcore.protocols import ArchitectureTraits, PipelineTraits
from rlcore.settings import OptimizerConfig
from rlcore.training.api import Result, train
from rlcore.training.run_components import PIPELINES, own_choices
from rlcore_testing.law import LawBroken, Subject
from rlcore_testing.rig import pretended_device
from rlcore_testing.rig.gradient_noise import GradientNoise, noise_seed
from rlcore_testing.rig.isolate import call_in_new_process, call_on_two_ranks
from rlcore_testing.rig.policies import checked
from rlcore_testing.rig.rollouts import ALIKE, Scripted, Spoiler, stacking_wider
from rlcore_testing.rig.watch import Watch, watching
from rlcore_testing.small import (
    PROMPTS,
    REWARDS,
    SAMPLES,
    make_bart,
    make_gpt2,
    make_llama,
    make_t5,
    make_tokenizer,
)

INPUTS: dict[str, Any] = {
    "prompts": list(PROMPTS), "samples": [list(sample) for sample in SAMPLES], "rewards": list(REWARDS),
    "reward_fn": "rlcore_testing.small:toy_reward", "metric_fn": "rlcore_testing.rig.runs:count_letters",
    "eval_prompts": list(PROMPTS), "eval_samples": [list(sample) for sample in SAMPLES[:3]],
}  # fmt: skip
"""Name of an input of `rlcore.train` → plain value for trainers that need it."""


def _with_fixed_head(*, scale: float = 1.0) -> PreTrainedModel:
    """Return a Llama whose head, which is scaled, does not train."""
    model = make_llama()
    model.lm_head.weight.requires_grad_(False).mul_(scale)
    return model


def _with_two_words_alike() -> PreTrainedModel:
    """Return a Llama that reads the two tokens of ALIKE as the same one, though it outputs one or the other."""
    model = make_llama()
    embedding = model.model.embed_tokens.weight.data
    embedding[ALIKE[1]] = embedding[ALIKE[0]]
    return model


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "gpt2": make_gpt2, "llama": make_llama, "t5": make_t5, "dropping_t5": make_t5, "bart": make_bart,
    "fixed_head": _with_fixed_head, "half_logits": partial(_with_fixed_head, scale=0.5),
    "two_alike": _with_two_words_alike,
}  # fmt: skip
NUM_EVAL_ROWS = 3
ANSWERS = {"answered": ALIKE[0], "answered_otherwise": ALIKE[1]}
DROPPING = ("gpt2", "dropping_t5")
DROPOUT = 0.1


def count_letters(outputs: list[str]) -> dict[str, list[float]]:
    """Return the length of each output."""
    return {"letters": [float(len(output)) for output in outputs]}


@attrs.frozen(kw_only=True)
class Tiny:
    """Description of a short run.

    Attributes:
        trainer: full name of the trainer.
        options: plain options of the trainer.
        inputs: names of the inputs to pass (`inputs_of`).
        root: parent of the run's folder.
        name: name of the run.
        steps: number of steps.
        model: one of MODELS; those in DROPPING have dropout; every parameter of `llama` receives a gradient.
        rollouts: `sampled` from the policy; `scripted`, independent of the policy and the number of processes;
            `scored`, scripted with the policy's log-probs; `padded`, scored and with random tokens as extra padding,
            also in demonstrations; `answered` or `answered_otherwise`, scored and with the answer of an environment,
            one of ALIKE, after the first token.
        rows: number of prompts, or of rows to train on; 0 for all that the kit or the pipeline has.
        pad_is_eos: use EOS as the padding token.
        stop_in: step in which Ctrl-C is pressed; 0 for none.
        nudged: `first` or `last`, to change the reference's log-prob of that token of each output.
        sections: further sections of the configuration.
        config: sections of the configuration that the plugin's author asks for; `sections` take precedence.
        bad: a number that is put in one place: `place`, its `value` as text, and `rank` (see `bad_numbers.Spoiler`).
        given: values that replace those of INPUTS.
        noise: seed of the noise in its gradients; 0 for none (`noisy`).
    """

    trainer: str
    options: Mapping[str, Any]
    inputs: tuple[str, ...]
    root: str
    name: str = "run"
    steps: int = 3
    model: str = "llama"
    rollouts: str = "sampled"
    rows: int = 0
    pad_is_eos: bool = False
    stop_in: int = 0
    nudged: str = ""
    sections: Mapping[str, Any] = attrs.field(factory=dict)
    config: Mapping[str, Any] = attrs.field(factory=dict)
    bad: Mapping[str, Any] = attrs.field(factory=dict)
    given: Mapping[str, Any] = attrs.field(factory=dict)
    noise: int = 0

    @classmethod
    def of(cls, subject: Subject, root: str, *, options: Mapping[str, Any] | None = None, **changes: Any) -> Tiny:
        """Describe a run of the trainer under test with its needed inputs; `options` replace the subject's."""
        plain = unstructure(subject.options if options is None else options)
        target: Any = subject.it.target()
        return cls(
            trainer=subject.it.qualified, options=plain, inputs=tuple(target.needs), root=root,
            config=unstructure(subject.sections), **changes,
        )  # fmt: skip

    def evaluated(self) -> Tiny:
        """Return the same run with inputs for evaluation."""
        further = ("eval_prompts", "eval_samples") if "samples" in self.inputs else ("eval_prompts",)
        return attrs.evolve(self, inputs=tuple(dict.fromkeys([*self.inputs, *further])))

    @property
    def dir(self) -> Path:
        """Return the run's folder."""
        return Path(self.root) / self.name

    @property
    def start(self) -> Path:
        """Return the folder of the policy before the first step."""
        return Path(self.root) / f"{self.name}-start"


def noisy(tiny: Tiny) -> Tiny:
    """Return a run that is compared up to rounding with others, with noise in its gradients if that is switched on.

    The switch is the environment variable `RLCORE_TESTING_NOISE` (`rlcore_testing.rig.gradient_noise`).
    """
    return attrs.evolve(tiny, noise=noise_seed())


def reads_tokens(subject: Subject) -> bool:
    """Return whether it trains a model of tokens."""
    named = subject.sections.get("model", {}).get("architecture") or _own(subject).get("architecture")
    if named is None:
        return True
    return ArchitectureTraits(registries().architectures.get(named).target()).kind in {LANGUAGE_MODEL, SCORER}


def _own(subject: Subject) -> dict[str, str]:
    return own_choices(subject.it, subject.config())


def trains_the_kits_decoder(subject: Subject) -> bool:
    """Return whether its runs are with a decoder-only model of the kit: no architecture is named."""
    named = subject.sections.get("model", {}).get("architecture")
    return not (named or _own(subject).get("architecture"))


def steady_options(subject: Subject) -> dict[str, object]:
    """Return the subject's options with an optimizer that does not amplify rounding errors.

    AdamW normalises gradients, so that a gradient of 1e-9 moves a weight as far as one of 1. With eps = 1 steps are
    about proportional to the gradient: rounding errors stay small, and a gradient twice too large is detected, which
    clipping would hide. Optimizers without `eps`, such as SGD, need none.
    """
    changed = merge(subject.options, {"optimizer": {"lr": 0.1, "max_grad_norm": 0.0}})
    declared = getattr(subject.config(), "optimizer", None)
    if isinstance(declared, OptimizerConfig):
        takes = parameters_of(Optimizers().get(declared).optimizer)
        changed = merge(changed, {"optimizer": {"eps": 1.0}} if takes is None or "eps" in takes else {})
    return _with_optimizer(subject, changed)


def eager_options(subject: Subject) -> dict[str, object]:
    """Return the subject's options with a learning rate of 0.01, unless they set one."""
    return _with_optimizer(subject, merge({"optimizer": {"lr": 1e-2}}, subject.options))


def _with_optimizer(subject: Subject, changed: dict[str, object]) -> dict[str, object]:
    declared = isinstance(getattr(subject.config(), "optimizer", None), OptimizerConfig)
    return changed if declared else dict(subject.options)


@attrs.frozen(eq=False)
class FinishedRun:
    """A finished run: its description, result and watch."""

    tiny: Tiny
    result: Result
    watch: Watch


def run(tiny: Tiny, make_watch: Callable[..., Watch] = Watch) -> FinishedRun:
    """Execute the run that `tiny` describes, in this process and with one thread, observed by a `Watch`.

    Raises:
        LawBroken: Ctrl-C did not wait for the end of the step.
    """
    scripted = Scripted(
        scored=tiny.rollouts != "scripted", padded=tiny.rollouts == "padded", answer=ANSWERS.get(tiny.rollouts)
    )
    watch = make_watch(tiny.start, None if tiny.rollouts == "sampled" else scripted, tiny.stop_in, tiny.nudged)
    watch.noise = GradientNoise(tiny.noise) if tiny.noise else None
    inputs = inputs_of(tiny)
    if tiny.bad:
        watch.spoiler = Spoiler(**{**tiny.bad, "value": float(tiny.bad["value"])})
        inputs = watch.spoiler.rewards(inputs)
    model = _model_of(tiny)
    for part in model.modules() if isinstance(model, nn.Module) else ():
        if isinstance(part, nn.Dropout) and tiny.model in DROPPING:
            part.p = DROPOUT
    defaults: dict[str, Any] = {
        "gen": {"max_new_tokens": 6}, "eval": {"at_end": False}, "checkpoint": {"at_end": False}, "loggers": [],
        "model": {"path": model},
    }  # fmt: skip
    place = {"run": {"root": tiny.root, "name": tiny.name, "steps": tiny.steps}}
    sections = merge(merge(merge(defaults, tiny.config), place), tiny.sections)
    with ExitStack() as stack:
        stack.enter_context(_on_one_core())
        stack.enter_context(watching(watch))
        if tiny.rollouts == "padded":
            stack.enter_context(stacking_wider())
        try:
            result = train(
                trainer={"name": tiny.trainer, **tiny.options},
                tokenizer=make_tokenizer(pad_is_eos=tiny.pad_is_eos),
                **inputs,
                **sections,
            )
        except KeyboardInterrupt as error:
            if not watch.pressed:
                raise
            raise LawBroken(
                f"expected Ctrl-C in step {tiny.stop_in} to wait for the step's end; it raised KeyboardInterrupt. "
                "Leave SIGINT and SIGTERM to the core"
            ) from error
    return FinishedRun(tiny, result, watch)


def run_in_new_process(tiny: Tiny, what: str) -> None:
    """Execute the run in a new process."""
    call_in_new_process("rlcore_testing.rig.runs:run_described", {"description": attrs.asdict(tiny)}, what=what)


def run_on_two_ranks(tiny: Tiny, what: str) -> None:
    """Execute the run on two ranks."""
    call_on_two_ranks("rlcore_testing.rig.runs:run_described", {"description": attrs.asdict(tiny)}, what=what)


def run_described(description: Mapping[str, Any]) -> int:
    """Execute a run that another process describes; return its last step."""
    return run(Tiny(**description)).result.run.step


def options_of(tiny: Tiny) -> Any:
    """Return the options of a run's trainer, defaults included; None if it has none."""
    component: Component[Any] = registries().trainers.get(tiny.trainer)
    cls = component.config_class()
    return None if cls is None else structure(cls, tiny.options, where=f"options of {component.qualified}")


def _own_of(tiny: Tiny) -> dict[str, str]:
    return own_choices(registries().trainers.get(tiny.trainer), options_of(tiny))


def _architecture_of(tiny: Tiny) -> object:
    """Return the architecture that a run names, or its trainer; None if neither does."""
    named = merge(tiny.config, tiny.sections).get("model", {}).get("architecture") or _own_of(tiny).get("architecture")
    return None if named is None else registries().architectures.get(named).target()


def _model_of(tiny: Tiny) -> Any:
    """Return the model of a run: one of MODELS, or the example of an architecture that supports none of them."""
    own = ArchitectureTraits(_architecture_of(tiny)).example_model
    return MODELS[tiny.model]() if own is None else checked(own)()


def inputs_of(tiny: Tiny) -> dict[str, Any]:
    """Return the inputs of a run: INPUTS, with rows of the form that its pipelines read.

    A pipeline of another form, which the trainer's class or the section `data` names, has `example_rows`; an
    architecture of another kind of models has `example_inputs`.
    """
    every = {**INPUTS, **tiny.given, **ArchitectureTraits(_architecture_of(tiny)).example_inputs}
    given = {name: every[name] for name in tiny.inputs}
    data = merge(tiny.config, tiny.sections).get("data", {})
    for option, name in PIPELINES.items():
        entry = data.get(option) or _own_of(tiny).get(option) or name
        pipeline = registries().pipelines.get(entry["name"] if isinstance(entry, Mapping) else entry).target()
        rows = PipelineTraits(pipeline).example_rows
        if rows is None:
            continue
        few = {name: rows, f"eval_{name}": rows[:NUM_EVAL_ROWS], "rewards": list(islice(cycle(REWARDS), len(rows)))}
        given |= {key: value for key, value in few.items() if key in given and (key != "rewards" or name == "samples")}
    return {
        key: value[: tiny.rows or None] if key in {*PIPELINES.values(), "rewards"} else value
        for key, value in given.items()
    }


@contextmanager
def _on_one_core() -> Iterator[None]:
    """Use one thread, for equal sums in every process, and no device but a pretended one.

    More threads are slower for small tensors.

    ACCELERATE_USE_CPU has an effect only in a process in which accelerate has no state yet.
    """
    threads, before = torch.get_num_threads(), os.environ.get("ACCELERATE_USE_CPU")
    torch.set_num_threads(1)
    os.environ["ACCELERATE_USE_CPU"] = "true" if pretended_device.active is None else "false"
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if before is None:
            del os.environ["ACCELERATE_USE_CPU"]
        else:
            os.environ["ACCELERATE_USE_CPU"] = before
