"""Find what makes a model say something else of the same tokens each time, and end it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

_STOCHASTIC = ("layerdrop", "jitter_noise", "input_jitter_noise")
"""Attributes of layers that skip some of them, or blur what a mixture of experts is routed by, in training mode."""


_found: WeakKeyDictionary[nn.Module, list[tuple[dict[str, Any], str]]] = WeakKeyDictionary()
"""Where the noise of a module sits; looked for once, since a walk through all layers at every pass would cost."""


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
    """End dropout and its kin in training mode, so that what learns is the distribution that was sampled from."""
    for holder, name in list(_stochastic_options(module)):
        holder[name] = 0.0


def is_stochastic(module: nn.Module) -> bool:
    """Tell whether `module`, in the mode it is in, may say something else of the same tokens each time.

    Layers that are added to it after the first time it was asked are not looked at, nor is what layers read off the
    model's configuration as they run.
    """
    if not module.training:
        return False
    places = _found.get(module)
    if places is None:
        places = _found[module] = list(_stochastic_options(module))
    return any(holder[name] > 0 for holder, name in places)


def _stochastic_options(module: nn.Module) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield every place in `module` that holds a probability of dropping something, or a breadth of jitter."""
    for part in module.modules():
        # Some layers of peft drop out without being torch's.
        drops = isinstance(part, nn.modules.dropout._DropoutNd) or "Dropout" in type(part).__name__  # noqa: SLF001
        for name, value in vars(part).items():
            if not ((name == "p" and drops) or "dropout" in name or name in _STOCHASTIC):
                continue
            if isinstance(value, float):
                yield vars(part), name
            elif isinstance(value, dict):  # adapters of peft hold one for each by its name
                yield from ((value, key) for key, held in value.items() if isinstance(held, float))
