"""Run code on fake tensors, which have a shape and a type but no values, so that it takes no memory and little time.

Floating-point tensors are fake: weights, hidden states, gradients. Token ids and masks are real, because the code reads
their values. A fake tensor whose value is read counts as zeros, so checks that compare two ways to compute the same
numbers succeed.

Also in this file: a cache of the result shapes of operations on fake tensors, so that a repeated layer costs little.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch._subclasses.fake_tensor import in_kernel_invocation_manager
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from rlcore_tools.plan.heap import Heap, LiveBytes
from rlcore_transformers.models.speed import fused_logprobs
from rlcore_transformers.models.speed.fused_logprobs import Tile, tiles

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


_aten, _device_of = torch.ops.aten, torch.ops.prim.device.default
_INDEXED = (
    _aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default, _aten._index_put_impl_.default,
)  # fmt: skip

NUM_TILES = 3
"""Tiles of logits that are computed: while the second is made, the first still exists; later ones repeat this."""


class FakeTensors(TorchDispatchMode):
    """A dispatch mode that makes every new floating-point tensor fake, and the results of operations on fake tensors.

    Args:
        heap: reserves blocks of the tensors' sizes.

    Attributes:
        live: counts the bytes that the tensors would take.
    """

    def __init__(self, heap: Heap | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live, self._fake = LiveBytes(heap), FakeTensorMode(allow_non_fake_inputs=True)
        self._forms = Forms(self._fake)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, on shapes alone if an argument is fake, and count the bytes of the result."""
        if func is _device_of:  # half of all calls; it allocates nothing
            return args[0].fake_device
        return self.live.counted(self._called(func, types, args, kwargs or {}))

    def _called(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        given = _tensors((args, kwargs))
        fakes = [tensor for tensor in given if isinstance(tensor, FakeTensor)]
        if not fakes:
            return func(*args, **kwargs) if given else self._made(func, args, kwargs)
        if func is _aten._local_scalar_dense.default:  # noqa: SLF001  the operation's name
            return 0.0 if given[0].is_floating_point() else 0
        if func is _aten.equal.default:
            return True
        if (func.is_view or func is _aten._unsafe_view.default) and len(given) == len(fakes) == 1:  # noqa: SLF001
            return self._view(func, fakes[0], args, kwargs)
        if func in _INDEXED:
            args = (args[0], _positions(args[1]), *args[2:])
            given = _tensors((args, kwargs))
        call = None if func._schema.is_mutable else call_of(func, args, kwargs)  # noqa: SLF001  no public way to ask
        if call is not None and (known := self._forms.recall(call)) is not None:
            return known
        if len(fakes) < len(given):
            args, kwargs = tree_map_only(Tensor, self._faked, (args, kwargs))
        out = self._fake.dispatch(func, types, args, kwargs)
        if call is not None:
            self._forms.keep(call, out, given)
        if isinstance(out, FakeTensor) and out.is_floating_point():
            return out
        return self._with_real_integers(out, func, args, kwargs)

    def _view(self, func: Any, tensor: FakeTensor, args: Any, kwargs: Any) -> Any:
        """Return a view of a fake tensor from its shape and strides; about half of all operations are views."""
        with in_kernel_invocation_manager(self._fake):
            out = func(*args, **kwargs)
        if isinstance(out, Tensor):
            return FakeTensor(self._fake, out, tensor.fake_device)
        return [FakeTensor(self._fake, view, tensor.fake_device) for view in out]

    def _faked(self, tensor: Tensor) -> Tensor:
        return tensor if isinstance(tensor, FakeTensor) else self._fake.from_tensor(tensor)

    def _made(self, func: Any, args: Any, kwargs: Any) -> Any:
        with self._fake:
            out = func(*args, **kwargs)
        return out if isinstance(out, Tensor) and out.is_floating_point() else func(*args, **kwargs)

    def _with_real_integers(self, out: Any, func: Any, args: Any, kwargs: Any) -> Any:
        """Replace fake integers and booleans in a result by those that the operation returns for zeros."""
        leaves, form = tree_flatten(out)
        unknown = [i for i, leaf in enumerate(leaves) if isinstance(leaf, FakeTensor) and not leaf.is_floating_point()]
        if not unknown:
            return out
        zeros = tree_map_only(FakeTensor, _zeros, (args, kwargs))
        found = tree_leaves(func(*zeros[0], **zeros[1]))
        for i in unknown:
            leaves[i] = found[i]
        return tree_unflatten(leaves, form)


def _tensors(given: Any) -> list[Tensor]:
    """List the tensors among arguments; `tree_leaves` takes as long as the calls themselves."""
    found: list[Tensor] = []
    for value in given.values() if isinstance(given, dict) else given:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple, dict)):
            found += _tensors(value)
    return found


def _positions(indices: Any) -> list[Any]:
    """Replace boolean masks by indices, whose number is known."""
    found: list[Any] = []
    for index in indices:
        is_mask = index is not None and index.dtype == torch.bool and not isinstance(index, FakeTensor)
        found += index.nonzero(as_tuple=True) if is_mask else [index]
    return found


def _zeros(tensor: Tensor) -> Tensor:
    return torch.zeros((), dtype=tensor.dtype).expand(tensor.shape)


def _apply(module: nn.Module, convert: Any, recurse: bool = True) -> nn.Module:
    """Convert the weights of a module, as `Module._apply` does, which itself cannot replace fake tensors in place."""
    for child in module.children() if recurse else ():
        _apply(child, convert)
    for kept in (module._parameters, module._buffers):  # noqa: SLF001  Module._apply uses these too
        for name, weight in kept.items():
            new: Any = weight if weight is None else convert(weight)
            if weight is None or new is weight:
                continue
            kept[name] = nn.Parameter(new, weight.requires_grad) if isinstance(weight, nn.Parameter) else new
    return module


def _first_tiles(*given: Any) -> Iterator[Tile]:
    """Yield the first few tiles of logits: the rest reuse their memory."""
    return islice(tiles(*given), NUM_TILES)


@contextmanager
def fake_tensors(again: FakeTensors | None = None) -> Iterator[FakeTensors]:
    """Run the code in this context on fake tensors; yields the mode, which counts their bytes.

    Args:
        again: the mode of an earlier context, whose tensors are then usable here; a new one if omitted.
    """
    mode, converted = again or FakeTensors(), nn.Module._apply  # noqa: SLF001  put back below
    nn.Module._apply = _apply  # type: ignore[method-assign]  # noqa: SLF001  it cannot swap fake tensors
    vars(fused_logprobs)["tiles"] = _first_tiles
    try:
        with mode:
            yield mode
    finally:
        nn.Module._apply = converted  # type: ignore[method-assign]  # noqa: SLF001  as it was
        vars(fused_logprobs)["tiles"] = tiles
