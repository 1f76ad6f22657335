"""Classes of options, each wrong in one way, and one that imports something heavy for it."""

from __future__ import annotations

from typing import Any

import attrs

from rlcore.config import config, option


@config
class Right:
    """Fine."""

    width: int = option(8, "how wide", ge=1)
    names: tuple[str, ...] = option(("a",), "what things are called")


@attrs.define(kw_only=True)
class Thawed:
    """Can be changed."""

    width: int = option(8, "how wide")


@config
class ThawedInside:
    """Has a section that can be changed."""

    inner: Thawed = option(attrs.Factory(Thawed), "what is inside")


@attrs.frozen
class Placed:
    """Is given by position."""

    width: int = option(8, "how wide")


@config
class Meaningless:
    """Does not say what an option is."""

    width: int = option(8, "")


@config
class Hidden:
    """Has an option nobody can set."""

    name: str = option("steps.txt", "what the file is called")


@config
class HiddenFromArchitectures:
    """Has another that an architecture cannot have."""

    tokenizer: str = option("gpt2", "which tokenizer")


@config
class HiddenFromOptimizers:
    """Has one that an optimizer cannot have."""

    eps: float = option(0.5, "another one")


@config
class Mistyped:
    """Has a default of another type."""

    width: int = option(2.5, "how wide")


@config
class OutOfRange:
    """Has a default that is out of range once it is read again."""

    width: float = option(float("nan"), "how wide")


@config
class Functions:
    """Holds what has no plain form."""

    score: Any = option(len, "a function")


@config
class Unequal:
    """Is never what it was."""

    width: int = option(8, "how wide")

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = None


class _Anything(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, dict) or type.__instancecheck__(cls, instance)


@config
class Open(metaclass=_Anything):
    """Takes whatever it is given."""

    width: int = option(8, "how wide")


def algorithm(config, run):
    """Be the right target of some component."""


def architecture(spec, config, *, tokenizer, value_head, reference):
    """Be the right target of some architecture."""


def another_each_time(spec, config, *, tokenizer, value_head, reference):
    """Have an example whose weights differ in every call."""


def same_each_time(spec, config, *, tokenizer, value_head, reference):
    """Have an example whose weights are always the same."""


def _linear():
    from torch import nn

    return nn.Linear(2, 3)


def _seeded_linear():
    import torch

    torch.manual_seed(0)
    return _linear()


another_each_time.example_model = _linear
same_each_time.example_model = _seeded_linear


def optimizer(groups, lr, eps=0.1):
    """Be the right target of some optimizer."""


def schedule(optimizer, num_warmup_steps, num_training_steps, width, names):
    """Be the right target of some schedule."""


def takes_one(run):
    """Take too little."""


class Unpicklable:
    """Be a target that is made anew for every process."""

    def __call__(self, config, run):
        """Do nothing."""

    def __reduce__(self):
        raise TypeError("no process but this one may have me")


unpicklable = Unpicklable()
nameless = lambda config, run: None  # noqa: E731
number = 3
