# ruff: noqa: SLF001  (torch offers subclasses of tensors and devices in Python under private names)
"""A pretended device: what a program does with an accelerator, seen on a machine that has none.

The values of its tensors are in the host's memory, and every operation is computed there. What differs is what a
program can notice: an operation that mixes such a tensor with one of the host is refused, and launches, copies and
waits are counted with the line that causes them. Speed, streams and memory of a real device are not imitated, nor the
rounding of its kernels.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from types import FrameType, TracebackType
from typing import Any, Self
from unittest.mock import patch

import torch
from accelerate.state import PartialState
from torch import Tensor, nn
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from rlcore.types import Options

NAME = "pretended"
REGISTER = "_setup_privateuseone_for_python_backend"
"""The function of torch, since 2.12, that registers a device whose operations are written in Python."""
LAUNCH, TO_DEVICE, TO_HOST, WAIT = "launch", "copy to the device", "copy to the host", "wait"
COPIES = {"copy_", "copy"}
BY_INDEX = {"index", "index_put", "index_put_", "_index_put_impl_"}
"""Operations for which CUDA accepts indices on the host: it copies them."""
WAITS = {
    "_local_scalar_dense", "_unique2", "equal", "is_nonzero", "masked_select", "nonzero", "unique_consecutive",
    "unique_dim",
}  # fmt: skip
"""Operations whose results have a size, or a value in Python, that depends on values on the device."""
LIBRARIES = ("torch", "transformers", "accelerate", "safetensors", "peft", "contextlib", "functools", __name__)
"""Modules whose lines are not named as the cause."""
active: PretendedDevice | None = None


class PretendedTensor(torch.Tensor):
    """A tensor on the pretended device; `held` has its values."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, held: Tensor, requires_grad: bool = False) -> PretendedTensor:  # noqa: PYI034
        """Put a tensor of the host on the device without a copy."""
        made: PretendedTensor = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            device=torch.device(NAME, 0), requires_grad=requires_grad,
        )  # fmt: skip
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch declares a placeholder
        cls, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> object:
        return compute(func, args, kwargs or {})

    def tolist(self) -> Any:
        """Copy the values to the host."""
        return self.cpu().tolist()

    def untyped_storage(self) -> torch.UntypedStorage:
        """Return the memory, by which tensors that share it are recognised."""
        return self.held.untyped_storage()

    def data_ptr(self) -> int:
        """Return the address."""
        return self.held.data_ptr()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            made = PretendedTensor(self.held.clone(), self.requires_grad)
            memo[id(self)] = nn.Parameter(made, self.requires_grad) if isinstance(self, nn.Parameter) else made
        copied: Tensor = memo[id(self)]
        return copied

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        return f"{NAME}: {self.held!r}"


class PretendedDevice(TorchDispatchMode):
    """Inside it, `device="pretended:0"` works, and accelerate chooses that device.

    Use it in a process of its own, before any backward pass: torch starts a thread for each device at the first, and a
    device cannot be removed.

    Attributes:
        counts: how often something happened and where, as `("wait", "trainer.py:12")`; launches have no place.
        refused: operations that mixed tensors of the host with those of the device, in order.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[tuple[str, str]] = Counter()
        self.refused: list[str] = []
        self._patches = ExitStack()

    def total(self, what: str) -> int:
        """Return how often something happened: LAUNCH, TO_DEVICE, TO_HOST or WAIT."""
        return sum(number for (name, _), number in self.counts.items() if name == what)

    def count(self, what: str) -> None:
        """Count something with the line that causes it."""
        self.counts[what, _place()] += 1

    def __enter__(self) -> Self:
        _register()
        state = PartialState()
        self._patches.enter_context(patch.object(state, "device", torch.device(NAME, 0)))
        self._patches.enter_context(patch.object(Tensor, "pin_memory", lambda tensor, *_: tensor))
        self._patches.enter_context(patch.object(sys.modules[__name__], "active", self))
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device=...) copies what the host has built
        self._patches.callback(torch._C._set_only_lift_cpu_tensors, False)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._patches.close()

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> object:
        return compute(func, args, kwargs or {})


class _Module(backend_registration._DummyBackendModule):
    """What torch, accelerate and transformers call of `torch.pretended`."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def is_bf16_supported(self) -> bool:
        return True

    def get_rng_state(self, *_: object) -> Tensor:
        return torch.zeros(0, dtype=torch.uint8)

    def set_rng_state(self, *_: object) -> None:
        pass

    def max_memory_allocated(self, *_: object) -> int:
        return 0

    def empty_cache(self) -> None:
        pass

    def synchronize(self, *_: object) -> None:
        if active is not None:
            active.count(WAIT)


@cache
def _register() -> None:
    getattr(backend_registration, REGISTER)(NAME, _Module())


def compute(func: Any, args: tuple[Any, ...], options: Options) -> Any:
    """Compute an operation of ATen on the host; what it returns is on the device if it is so on a real one.

    Raises:
        RuntimeError: it mixes tensors of the host with tensors of the device, as CUDA refuses it.
    """
    tensors = [each for each in tree_leaves((args, options)) if isinstance(each, Tensor)]
    ours = [each for each in tensors if isinstance(each, PretendedTensor)]
    name, asked = func.overloadpacket.__name__, options.get("device")
    stays = bool(ours) if asked is None else torch.device(asked).type == NAME
    if name in COPIES:
        source, stays = isinstance(args[1], PretendedTensor), isinstance(args[0], PretendedTensor)
    else:
        source = bool(ours)
        if ours and name != "_to_copy":
            _refuse_mixtures(name, args, tensors)
    if active is not None:
        _count(active, func, name, source=source, target=stays)
    inner_args, inner = tree_map_only(PretendedTensor, lambda each: each.held, (args, dict(options)))
    if asked is not None and stays:
        inner["device"] = torch.device("cpu")
    inner.pop("pin_memory", None)
    result = func(*inner_args, **inner)
    if not stays:
        return result
    known = {id(each.held): each for each in ours}
    return tree_map_only(Tensor, lambda each: known[id(each)] if id(each) in known else PretendedTensor(each), result)


def _count(device: PretendedDevice, func: Any, name: str, *, source: bool, target: bool) -> None:
    """Count what an operation with operands on the device (`source`) and results there (`target`) makes it do."""
    if source != target and (name in COPIES or name == "_to_copy"):
        device.count(TO_DEVICE if target else TO_HOST)
    elif source and name in WAITS:
        device.count(WAIT)
    elif (source or target) and not func.is_view:
        device.counts[LAUNCH, ""] += 1


def _refuse_mixtures(name: str, args: tuple[object, ...], tensors: Sequence[Tensor]) -> None:
    """Raise if an operation mixes devices; CUDA accepts numbers (tensors of no dimension) and indices of the host."""
    is_ours = isinstance(args[0], PretendedTensor) if args else True
    judged = [args[0], *args[2:]] if name in BY_INDEX and is_ours else tensors
    host = [
        each for each in judged if isinstance(each, Tensor) and not isinstance(each, PretendedTensor) and each.dim()
    ]
    if not host:
        return
    places = ", ".join(f"{list(each.shape)} on {each.device.type}" for each in tensors[:4])
    message = f"{name} of {places}, at {_place()}"
    if active is not None:
        active.refused.append(message)
    raise RuntimeError(f"expected all tensors to be on the same device: {message}")


def _place() -> str:
    """Return the file and line that caused an operation, outside of the libraries."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not any(module == each or module.startswith(f"{each}.") for each in LIBRARIES):
            return f"{module}:{frame.f_lineno}"
        frame = frame.f_back
    return "the backward pass"
