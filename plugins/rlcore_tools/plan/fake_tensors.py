"""Run code on fake tensors, which have a shape and a type but no values, so that it takes no memory and little time.

Floating-point tensors are fake: weights, hidden states, gradients. Token ids and masks are real, because the code reads
their values. A fake tensor whose value is read counts as zeros, so checks that compare two ways to compute the same
numbers succeed.

Also in this file: a cache of the result shapes of operations on fake tensors, so that a repeated layer costs little;
the memory that the C library's malloc keeps of freed tensors, measured by reserving blocks of their sizes.
"""

from __future__ import annotations

import ctypes
import platform
import weakref
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch._subclasses.fake_tensor import in_kernel_invocation_manager
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from rlcore_transformers.models.speed import fused_logprobs
from rlcore_transformers.models.speed.fused_logprobs import Tile, tiles

ALIGNMENT = 64
"""Alignment of torch's CPU tensors, in bytes."""


@attrs.frozen
class Block:
    """A reserved block: its address, and its size if malloc obtained it by mmap, else 0."""

    address: int
    mapped: int


class Heap:
    """A replay of a run's tensor allocations through malloc, which measures tensors and holes together.

    Without glibc's `mallinfo2` nothing is reserved and no holes are counted.

    Attributes:
        peak: largest number of bytes since `restart` that the process would hold for tensors and holes between them.
        is_open: whether blocks are reserved.
        has_failed: whether an allocation failed, so that the holes are underestimated.
    """

    def __init__(self) -> None:
        self.peak, self._most, self._mapped = 0, 0, 0
        self.is_open, self.has_failed = _LIBRARY is not None, False
        if _LIBRARY is not None:
            self._begin, self._free = _LIBRARY.sbrk(0), _LIBRARY.mallinfo2().fordblks

    def restart(self) -> None:
        """Reset the peak."""
        self.peak, self._most = 0, 0

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Reserve nothing while the context is open."""
        was_open, self.is_open = self.is_open, False
        try:
            yield
        finally:
            self.is_open = was_open

    def take(self, size: int, held: int) -> Block | None:
        """Reserve a block of `size` bytes; return None if blocks are not reserved or the allocation fails.

        Args:
            size: bytes of the new tensor.
            held: bytes of all tensors, the new one included.
        """
        if not self.is_open:
            return None
        address = ctypes.c_void_p()
        if _LIBRARY.posix_memalign(ctypes.byref(address), ALIGNMENT, size) or address.value is None:
            self.has_failed = True
            return None
        end = _LIBRARY.sbrk(0)
        mapped = size if address.value > end else 0  # mmapped blocks lie above the heap
        self._mapped += mapped
        if end - self._begin + self._mapped > self._most:
            self._most = end - self._begin + self._mapped
            self.peak = max(self.peak, held + _LIBRARY.mallinfo2().fordblks - self._free)
        return Block(address.value, mapped)

    def give(self, block: Block) -> None:
        """Free a block."""
        self._mapped -= block.mapped
        _LIBRARY.free(block.address)


class _Account(ctypes.Structure):
    """glibc's heap statistics: `struct mallinfo2` of malloc.h."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
        )
    ]  # fmt: skip


def _library() -> Any:
    """Return the C library if it is glibc 2.33 or later, which has `mallinfo2`; None otherwise."""
    name, version = platform.libc_ver()
    if name != "glibc" or [int(part) for part in version.split(".")[:2]] < [2, 33]:
        return None
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = _Account
    library.sbrk.restype, library.sbrk.argtypes = ctypes.c_ssize_t, [ctypes.c_ssize_t]
    library.posix_memalign.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    return library


_LIBRARY = _library()


class LiveBytes(TorchDispatchMode):
    """A dispatch mode that counts the bytes each operation of torch allocates, until they are freed.

    Views count once, as the storage they share. Memory that a kernel allocates and frees inside, or that an allocator
    keeps, is not counted.

    Args:
        heap: reserves a block for every fake tensor, as malloc would for a real one.

    Attributes:
        now: bytes held at present.
        peak: largest number of bytes since `restart`.
    """

    def __init__(self, heap: Heap | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now, self.peak, self.heap = 0, 0, heap
        self._known: dict[int, weakref.ref[Any]] = {}

    def restart(self) -> int:
        """Reset the peak to the bytes held now, and return them."""
        self.peak = self.now
        if self.heap is not None:
            self.heap.restart()
        return self.now

    @property
    def holes(self) -> int:
        """Return the bytes of freed tensors that malloc would hold beyond the peak."""
        return 0 if self.heap is None else max(0, self.heap.peak - self.peak)

    def unreplayed(self) -> AbstractContextManager[None]:
        """Reserve no blocks for fake tensors while the context is open."""
        return nullcontext() if self.heap is None else self.heap.closed()

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, and count what it returns."""
        return self.counted(func(*args, **(kwargs or {})))

    def counted(self, out: object) -> Any:
        """Count the tensors in what an operation has returned, and return it."""
        for leaf in (out,) if isinstance(out, Tensor) else tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._count(leaf)
        return out

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()  # noqa: SLF001  identifies the storage
        if not size or key in self._known:
            return

        self.now += size
        self.peak = max(self.peak, self.now)
        is_real = storage.device.type != "meta"
        block = None if is_real or self.heap is None else self.heap.take(size, self.now)

        def freed(_: object) -> None:
            del self._known[key]
            self.now -= size
            if block is not None and self.heap is not None:
                self.heap.give(block)

        self._known[key] = weakref.ref(storage, freed)


def held(*tensors: Tensor | None) -> int:
    """Return the bytes of the tensors' storages, each storage counted once."""
    storages = [tensor.untyped_storage() for tensor in tensors if tensor is not None]
    by_id = {storage._cdata: storage.nbytes() for storage in storages}  # noqa: SLF001  identifies the storage
    return sum(by_id.values())


def parameters_of(module: torch.nn.Module | None) -> list[Tensor]:
    """List the parameters and buffers of a module, trainable or not."""
    return [] if module is None else [*module.parameters(), *module.buffers()]


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

    def recall(self, call: Hashable) -> object:
        """Return new fake tensors of the form that an equal call returned; None if no such call is cached."""
        known = self._known.get(call)
        if known is None:
            return None
        return tuple(map(self._made, known)) if isinstance(known, list) else self._made(known)

    def keep(self, call: Hashable, out: object, given: Sequence[Tensor]) -> None:
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


def call_of(func: object, args: Any, kwargs: Any) -> Hashable:
    """Return a key of a call: equal keys mean results of equal shape, strides, type and device."""
    return func, _seen(args), _seen(tuple(kwargs.items()))


def _seen(value: object) -> Hashable:
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.device
    if isinstance(value, (list, tuple)):
        return tuple(map(_seen, value))
    return type(value), value  # 1 == True, but their type promotion differs


def _place(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001  identifies the storage


def _is_new(made: object, places: set[int]) -> bool:
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

    def __torch_dispatch__(self, func: object, types: object, args: Any = (), kwargs: object = None) -> Any:
        """Call `func`, on shapes alone if an argument is fake, and count the bytes of the result."""
        if func is _device_of:  # half of all calls; it allocates nothing
            return args[0].fake_device
        return self.live.counted(self._called(func, types, args, kwargs or {}))

    def _called(self, func: Any, types: Any, args: Any, kwargs: Any) -> object:
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

    def _view(self, func: Any, tensor: FakeTensor, args: Any, kwargs: Any) -> object:
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

    def _with_real_integers(self, out: object, func: Any, args: object, kwargs: object) -> Any:
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
    found: list[object] = []
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
