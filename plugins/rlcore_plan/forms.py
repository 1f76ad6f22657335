"""A cache of the result shapes of operations on fake tensors, so that a repeated layer costs little."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor, FakeTensorMode

Form = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device]


class Forms:
    """Shape, strides, type and device of operations' results, keyed by those of the arguments.

    Only operations whose results are new fake tensors, which share no memory with an argument, are cached.

    Args:
        mode: the mode that the fake tensors belong to.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._known: dict[Hashable, Form | list[Form]] = {}

    def recall(self, call: Hashable) -> Any:
        """Return new fake tensors of the form that an equal call returned; None if no such call is cached."""
        known = self._known.get(call)
        if known is None:
            return None
        return tuple(map(self._made, known)) if isinstance(known, list) else self._made(known)

    def keep(self, call: Hashable, out: Any, given: Sequence[Tensor]) -> None:
        """Keep the forms of a call's result if it consists of new fake tensors."""
        places = {_place(tensor) for tensor in given}
        made = out if isinstance(out, tuple) else (out,)
        if not made or not all(_is_new(each, places) for each in made):
            return
        forms = [(each.shape, each.stride(), each.dtype, each.fake_device) for each in made]
        self._known[call] = forms if isinstance(out, tuple) else forms[0]

    def _made(self, form: Form) -> FakeTensor:
        shape, stride, dtype, device = form
        return FakeTensor(self._mode, torch.empty_strided(shape, stride, dtype=dtype, device="meta"), device)


def call_of(func: Any, args: Any, kwargs: Any) -> Hashable:
    """Return a key of a call: equal keys mean results of equal shape, strides, type and device."""
    return func, _seen(args), _seen(tuple(kwargs.items()))


def _seen(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.device
    if isinstance(value, (list, tuple)):
        return tuple(map(_seen, value))
    return type(value), value  # 1 == True, but their type promotion differs


def _place(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001  identifies the storage


def _is_new(made: Any, places: set[int]) -> bool:
    """Return whether a result is a floating-point fake tensor that fills a storage of its own."""
    if not isinstance(made, FakeTensor) or not made.is_floating_point() or _place(made) in places:
        return False
    again = torch.empty_strided(made.shape, made.stride(), dtype=made.dtype, device="meta")
    return made.storage_offset() == 0 and again.untyped_storage().nbytes() == made.untyped_storage().nbytes()
