"""Hooks that let a run with `run.asynchronous` sample ahead; light, since every command imports it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from rlcore import hookimpl
from rlcore.hookspecs import RegisterServices

if TYPE_CHECKING:
    from rlcore.components import Component
    from rlcore.settings import TrainConfig
    from rlcore_engines.asynchronous.sampler import AheadSampler

_samplers: WeakValueDictionary[int, AheadSampler] = WeakValueDictionary()
"""Samplers by the id of the configuration of their run, which they keep; its trainer is built after them."""


@hookimpl
def register_services(register: RegisterServices) -> None:
    """State the option that this plugin implements."""
    register(options=["run.asynchronous"])


@hookimpl
def wrap_component(component: Component[object], config: TrainConfig | None) -> Callable[[Any], object] | None:
    """Wrap the sampler and the trainer of a run with `run.asynchronous`."""
    if config is None or not config.run.asynchronous or component.kind not in ("samplers", "trainers"):
        return None

    def wrap_sampler(sampler: object) -> object:
        from rlcore_engines.asynchronous.sampler import AheadSampler

        wrapped = _samplers[id(config)] = AheadSampler(sampler, component.name, config)
        return wrapped

    def wrap_trainer(trainer: object) -> object:
        from rlcore_engines.asynchronous.sampler import AheadTrainer

        sampler = _samplers.get(id(config))
        return trainer if sampler is None else AheadTrainer(trainer, sampler)

    return wrap_sampler if component.kind == "samplers" else wrap_trainer
