"""Run code on tensors of which only shape and type are known, so that it costs no memory and next to no time.

Numbers with a fraction are phantoms: weights, hidden states, gradients. Token ids and masks are real, for the code
looks at them. Where it wants to know a phantom's value, it is told that of a tensor of zeros. So all phantoms are equal
to each other, and checks that two ways to compute the same thing agree succeed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from rlcore.planning.live import LiveBytes

_aten = torch.ops.aten
_INDEXED = (
    _aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default, _aten._index_put_impl_.default,
)  # fmt: skip


class Phantoms(TorchDispatchMode):
    """Make every new tensor of floats a phantom, and all that is computed from phantoms."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func` for shapes alone where it is about phantoms."""
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if not any(isinstance(tensor, FakeTensor) for tensor in given):
            return func(*args, **kwargs) if given else self._made(func, args, kwargs)
        if func is _aten._local_scalar_dense.default:  # noqa: SLF001  the operation's name
            return 0.0 if given[0].is_floating_point() else 0
        if func is _aten.equal.default:
            return True
        if func in _INDEXED:
            args = (args[0], _positions(args[1]), *args[2:])
        args, kwargs = tree_map_only(Tensor, self._phantom, (args, kwargs))
        with self._fake:
            out = func(*args, **kwargs)
        return self._with_real_integers(out, func, args, kwargs)

    def _phantom(self, tensor: Tensor) -> Tensor:
        return tensor if isinstance(tensor, FakeTensor) else self._fake.from_tensor(tensor)

    def _made(self, func: Any, args: Any, kwargs: Any) -> Any:
        with self._fake:
            out = func(*args, **kwargs)
        return out if isinstance(out, Tensor) and out.is_floating_point() else func(*args, **kwargs)

    def _with_real_integers(self, out: Any, func: Any, args: Any, kwargs: Any) -> Any:
        """Put real integers and truth values in place of phantom ones: those that zeros lead to."""
        leaves, form = tree_flatten(out)
        unknown = [i for i, leaf in enumerate(leaves) if isinstance(leaf, FakeTensor) and not leaf.is_floating_point()]
        if not unknown:
            return out
        zeros = tree_map_only(FakeTensor, _zeros, (args, kwargs))
        found = tree_leaves(func(*zeros[0], **zeros[1]))
        for i in unknown:
            leaves[i] = found[i]
        return tree_unflatten(leaves, form)


def _positions(indices: Any) -> list[Any]:
    """Say with numbers where masks are True, so that the number of them is known."""
    found: list[Any] = []
    for index in indices:
        is_mask = index is not None and index.dtype == torch.bool and not isinstance(index, FakeTensor)
        found += index.nonzero(as_tuple=True) if is_mask else [index]
    return found


def _zeros(tensor: Tensor) -> Tensor:
    return torch.zeros((), dtype=tensor.dtype).expand(tensor.shape)


def _apply(module: nn.Module, convert: Any, recurse: bool = True) -> nn.Module:
    """Convert the weights of a module, as to another type: torch's own way writes over them in place."""
    for child in module.children() if recurse else ():
        _apply(child, convert)
    for kept in (module._parameters, module._buffers):  # noqa: SLF001  torch's own way takes these too
        for name, weight in kept.items():
            new: Any = weight if weight is None else convert(weight)
            if weight is None or new is weight:
                continue
            kept[name] = nn.Parameter(new, weight.requires_grad) if isinstance(weight, nn.Parameter) else new
    return module


@contextmanager
def phantoms() -> Iterator[LiveBytes]:
    """Have what runs in this context work on phantoms; yields the count of the bytes they would take."""
    live, converted = LiveBytes(), nn.Module._apply  # noqa: SLF001  put back below
    nn.Module._apply = _apply  # type: ignore[method-assign]  # noqa: SLF001  it cannot swap phantoms
    try:
        with Phantoms(), live:
            yield live
    finally:
        nn.Module._apply = converted  # type: ignore[method-assign]  # noqa: SLF001  as it was
