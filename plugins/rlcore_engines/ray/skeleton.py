"""A policy as bytes without its weights, and its weights as arrays: what a process needs to hold a copy of it.

The bytes hold everything that sampling reads, heads and adapters included, so that a copy computes the same numbers.
What only training needs is left out: the wrapped module, the connections between processes and the reference model.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from ray import cloudpickle
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rlcore.errors import ModelError
from rlcore.protocols import Divisible, Policy

Array = NDArray[np.uint8]
PLAIN = (Tensor, nn.Parameter, nn.Buffer)
ABSENT = ("absent",)


def state_of(policy: Policy) -> dict[str, Tensor]:
    """Return every parameter and buffer of a policy's module by its name; shared ones once."""
    module = policy.module
    return {name: each.detach() for name, each in [*module.named_parameters(), *module.named_buffers()]}


def to_array(tensor: Tensor) -> Array:
    """Return the bytes of a tensor, of any dtype and device: uint8[bytes]. On a CPU they are not copied."""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    array: Array = flat.view(torch.uint8).numpy() if len(flat) else np.empty(0, np.uint8)
    return array


def equals(array: Array, tensor: Tensor) -> bool:
    """Return whether an array holds the bytes of a tensor."""
    return bool(np.array_equal(array, to_array(tensor)))


class _Writer(cloudpickle.Pickler):
    """Pickles a policy; tensors of its module are named, those of its reference and what trains are left out."""

    def __init__(self, file: object, policy: Policy) -> None:
        super().__init__(file)  # type: ignore[no-untyped-call]  # of Ray's copy of cloudpickle
        module = policy.module
        frozen = policy.frozen_parameters() if isinstance(policy, Divisible) else {}
        self._named = {id(each): name for name, each in [*module.named_parameters(), *module.named_buffers()]}
        self._frozen = {id(each) for each in frozen.values()}
        self._own = {id(each) for each in module.modules()}

    def persistent_id(self, item: object) -> object:
        """Return what stands for a tensor or for an object of training; None for all others."""
        if isinstance(item, Tensor):
            name = self._named.get(id(item))
            return None if name is None else ("named", name, tuple(item.shape), item.dtype, type(item) is nn.Parameter)
        if isinstance(item, nn.Module) and id(item) not in self._own:
            is_reference = any(id(each) in self._frozen for each in item.parameters())
            return ABSENT if is_reference or isinstance(item, DistributedDataParallel) else None
        is_training = type(item).__module__.startswith(
            ("accelerate.", "deepspeed.", "torch.distributed.", "torch._C._distributed_c10d")
        )
        return ABSENT if is_training and not isinstance(item, type) else None


class _Reader(pickle.Unpickler):
    """Reads what `_Writer` wrote; `tensors` are those of the module, empty, by name."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.tensors: dict[str, Tensor] = {}

    def persistent_load(self, found: Any) -> object:
        """Return an empty tensor for a named one, always the same for a name, and None for what was left out."""
        if found == ABSENT:
            return _Nothing()
        _, *rest = found
        name, shape, dtype, is_parameter = rest
        if name not in self.tensors:
            empty = torch.empty(shape, dtype=dtype)
            self.tensors[name] = nn.Parameter(empty, requires_grad=False) if is_parameter else empty
        return self.tensors[name]


class _Nothing:
    """Stands for what was left out; nothing calls it, but methods of it may be looked up."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


def dump(policy: Policy) -> bytes:
    """Return a policy without its weights.

    Raises:
        ModelError: its weights are quantized, or it holds something that cannot be sent to another process.
    """
    odd = next((type(each).__name__ for each in policy.module.parameters() if type(each) not in PLAIN), None)
    if odd is not None:
        raise ModelError(f"sampler = 'ray': cannot send weights of the type {odd}; leave out model.quantization")
    file = io.BytesIO()
    try:
        _Writer(file, policy).dump(policy)  # type: ignore[no-untyped-call]  # of Ray's copy of cloudpickle
    except (TypeError, AttributeError, pickle.PicklingError, RuntimeError, ValueError) as error:
        raise ModelError(
            f"sampler = 'ray': {type(policy).__name__} cannot be sent to another process ({error}): it, its tokenizer "
            "or a wrapper of a plugin holds what pickle does not write; use sampler: default"
        ) from error
    return file.getvalue()


def load(data: bytes, *, mixed_precision: str = "no") -> tuple[Any, dict[str, Tensor]]:
    """Return a policy on the CPU, in evaluation mode, and its empty tensors by name, for `fill`.

    Args:
        data: what `dump` returned.
        mixed_precision: precision of the passes of the run, "no", "bf16" or "fp16".
    """
    reader = _Reader(io.BytesIO(data))
    policy = reader.load()
    if isinstance(policy, Divisible):
        policy.use_shards()
    policy.module.__dict__.pop("forward", None)  # that of the class, where training has replaced it
    policy.use_forward(policy.module, autocast=partial(_autocast, policy, mixed_precision))
    policy.module.eval()
    return policy, reader.tensors


def fill(tensors: Mapping[str, Tensor], arrays: Mapping[str, Array]) -> None:
    """Copy arrays that `to_array` made into tensors of the same names, shapes and dtypes."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable")  # they are only read
        for name, array in arrays.items():
            if not array.size:  # an empty tensor has no view of another type
                continue
            into = tensors[name]
            into.copy_(torch.from_numpy(array).view(into.dtype).view(into.shape))


def _autocast(policy: Policy, precision: str) -> AbstractContextManager[Any]:
    if precision == "no":
        return nullcontext()
    return torch.autocast(policy.device.type, dtype=torch.bfloat16 if precision == "bf16" else torch.float16)
