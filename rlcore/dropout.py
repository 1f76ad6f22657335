"""Detect and disable stochastic layers: dropout, layerdrop and router jitter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

_STOCHASTIC = ("layerdrop", "jitter_noise", "input_jitter_noise")
"""Attributes that hold the rate of layerdrop, or the width of router jitter in a mixture of experts."""


_found: WeakKeyDictionary[nn.Module, list[tuple[dict[str, Any], str]]] = WeakKeyDictionary()
"""Where a module keeps its dropout rates; cached, because a walk through all layers in every pass would be slow."""


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Put `module` in evaluation mode, and each of its modules back in its own mode at the end."""
    training = [part for part in module.modules() if part.training]
    if training:
        module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def disable_dropout(module: nn.Module) -> None:
    """Set all rates of dropout, layerdrop and jitter to 0, so that training uses the distribution sampled from."""
    for holder, name in list(_stochastic_options(module)):
        holder[name] = 0.0


def is_stochastic(module: nn.Module) -> bool:
    """Return whether `module`, in its current mode, may return different outputs for the same tokens.

    Layers added after the first call are not checked, nor are rates that layers read from the model's configuration at
    run time.
    """
    if not module.training:
        return False
    rates = _found.get(module)
    if rates is None:
        rates = _found[module] = list(_stochastic_options(module))
    return any(holder[name] > 0 for holder, name in rates)


def _stochastic_options(module: nn.Module) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the dictionary and key of every rate of dropout, layerdrop or jitter in `module`."""
    for part in module.modules():
        # Some dropout layers of peft are not subclasses of torch's.
        drops = isinstance(part, nn.modules.dropout._DropoutNd) or "Dropout" in type(part).__name__  # noqa: SLF001
        for name, value in vars(part).items():
            if not ((name == "p" and drops) or "dropout" in name or name in _STOCHASTIC):
                continue
            if isinstance(value, float):
                yield vars(part), name
            elif isinstance(value, dict):  # peft keeps one rate for each adapter, by its name
                yield from ((value, key) for key, held in value.items() if isinstance(held, float))
