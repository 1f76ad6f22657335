"""Remember what operations on phantoms lead to, so that a layer like the one before is gone through at little cost."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor, FakeTensorMode

Form = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device]


class Forms:
    """Keep the forms of what operations have made, which follow from those of what they were given.

    That holds for operations that make new phantoms alone: what they make shares no memory with what they are given.

    Args:
        mode: what phantoms belong to.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._known: dict[Hashable, Form | list[Form]] = {}

    def recall(self, call: Hashable) -> Any:
        """Return new phantoms of the forms that a call has led to before; None where that is not known."""
        known = self._known.get(call)
        if known is None:
            return None
        return tuple(map(self._made, known)) if isinstance(known, list) else self._made(known)

    def keep(self, call: Hashable, out: Any, given: Sequence[Tensor]) -> None:
        """Keep the forms of what a call has led to, if new phantoms are all of it."""
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
    """Say what a call is, as far as shapes go: two that are equal lead to phantoms of the same forms."""
    return func, _seen(args), _seen(tuple(kwargs.items()))


def _seen(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.device
    if isinstance(value, (list, tuple)):
        return tuple(map(_seen, value))
    return type(value), value  # 1 and True are equal, and do not promote alike


def _place(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001  what tells storages apart


def _is_new(made: Any, places: set[int]) -> bool:
    """Tell whether something is a phantom of floats that fills a memory of its own."""
    if not isinstance(made, FakeTensor) or not made.is_floating_point() or _place(made) in places:
        return False
    again = torch.empty_strided(made.shape, made.stride(), dtype=made.dtype, device="meta")
    return made.storage_offset() == 0 and again.untyped_storage().nbytes() == made.untyped_storage().nbytes()
