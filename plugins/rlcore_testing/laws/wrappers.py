"""The law of the hook `wrap_component`: a wrapper has the interface of what it wraps."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import pluggy

from rlcore import hookspecs
from rlcore.components import Component, describe_error
from rlcore.config import structure
from rlcore.plugins.choice import HOOK, layers_of
from rlcore.plugins.metadata import CORE
from rlcore.plugins.registry import all_registries
from rlcore.settings import TrainConfig
from rlcore_testing.law import BASE, DIST, LawBroken, Subject, law, require
from rlcore_testing.rig.logger_runs import RunStub
from rlcore_testing.rig.probes import hooks_of, resolve

if TYPE_CHECKING:
    from rlcore.types import State

CALLED = ("samplers", "rewards", "pipelines", "optimizers", "schedulers")
"""Kinds that build something callable."""


REWARD: Component[Any] = Component(
    "rewards", "toy_reward", CORE, "", "", reference="rlcore_testing.small:toy_reward", config_reference=None
)
"""A reward, since rlcore registers none."""
TRAINER: Component[Any] = Component(
    "trainers", "toy_trainer", CORE, "", "", reference="rlcore_testing.laws.wrappers:ToyTrainer", config_reference=None
)
"""Likewise a trainer."""


class ToyTrainer:
    """A trainer that does nothing, with all that `rlcore.protocols.Trainer` declares."""

    needs = ("samples",)
    default_budget: ClassVar[Mapping[str, float]] = {"epochs": 1.0}

    def steps(self) -> Iterator[Mapping[str, float]]:
        """Yield no step."""
        yield from ()

    def policy(self) -> None:
        """Return no policy."""

    def state_dict(self) -> State:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Restore nothing."""


def _wraps(subject: Subject) -> bool:
    """Return whether it implements the hook `wrap_component`."""
    return any(HOOK in hooks_of(plugin.module) for plugin in subject.plugins)


@law(DIST, when=_wraps)
def wrappers_keep_the_interface(subject: Subject) -> None:
    """What `wrap_component` returns for a component has the parameters and public attributes of what it wraps.

    The law is checked with samplers, rewards, pipelines, optimizers, schedules and stores of rlcore and of the package,
    with a sampler and a reward that have a method `close`, with a policy of `causal_lm`, the logger `jsonl`, and a
    trainer.
    """
    hooks = pluggy.PluginManager(hookspecs.PROJECT)
    hooks.add_hookspecs(hookspecs)
    for plugin in subject.plugins:
        hooks.register(resolve(plugin.module), name=f"{plugin.dist}:{plugin.name}")
    own = [component for plugin in subject.plugins for component in plugin.components]
    base = [each for each in all_registries().discovery.components if each.dist in BASE and each not in own]
    for component in (*base, *own, REWARD, TRAINER):
        for layer in layers_of(component, hooks, structure(TrainConfig, subject.sections, where="config")):
            if layer.error is not None:
                raise LawBroken(f"{HOOK} of {component} raises {describe_error(layer.error)}")
            with TemporaryDirectory() as folder:
                for built in _examples(component, Path(folder)):
                    _compare(component, built, layer.wrap)


def _compare(component: Component[object], built: object, wrap: Callable[[Any], object] | None) -> None:
    own = dir(built) if not isinstance(built, partial) else vars(built)  # `func` and `args` are of no use to a run
    before, attributes = _parameters(built), [name for name in own if not name.startswith("_")]
    outer = built if wrap is None else wrap(built)
    missing = [name for name in attributes if not hasattr(outer, name)]
    advice = "pass calls and attributes on to the wrapped object, or change it in place and return it"
    require(not missing, f"its wrapper of {component} has no attribute {', '.join(missing)}; {advice}")
    lacking = [name for name in before if name not in _parameters(outer)]
    require(not lacking, f"its wrapper of {component} has no parameter {', '.join(lacking)}; {advice}")


def _examples(component: Component[Any], folder: Path) -> Iterator[object]:
    """Yield what a component builds, if its options have defaults, and an object of its kind with `close`."""
    target: Any = component.target()
    cls: Any = component.config_class()
    if component.qualified == "rlcore-transformers:causal_lm":
        from rlcore_testing.small import make_gpt2, make_tokenizer  # import torch

        yield target(make_gpt2(), cls(), tokenizer=make_tokenizer(), value_head=False, reference=True)
    if component.qualified == "rlcore:jsonl":
        logger = target(None, RunStub(folder))
        yield logger
        logger.close(None)
    if component is TRAINER:
        yield target()
    if component.kind not in (*CALLED, "rollout_stores"):
        return
    if component.kind in ("optimizers", "schedulers"):
        yield target
    elif cls is not None and not any(field.default is attrs.NOTHING for field in attrs.fields(cls)):
        yield target(cls())
    elif cls is None:
        yield target() if component.kind == "rollout_stores" else target
    if component.kind in ("samplers", "rewards"):
        yield _Closable(target)


class _Closable:
    """A sampler or reward with a method `close`, which a run calls at its end."""

    def __init__(self, call: Callable[..., object]) -> None:
        self._call = call
        self.__signature__ = inspect.signature(call)

    def __call__(self, *arguments: object, **named: object) -> object:
        return self._call(*arguments, **named)

    def close(self) -> None:
        """Do nothing."""


def _parameters(built: object) -> list[str]:
    if not callable(built):
        return []
    try:
        return list(inspect.signature(built).parameters)
    except (ValueError, TypeError):  # extension types may have no signature
        return []
