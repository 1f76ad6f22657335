"""Tests of cached fake tensors: they equal newly made ones, and lookups are cheap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.nn.functional import layer_norm
from torch.utils._pytree import tree_leaves

from rlcore_tools.plan.fake_tensors import fake_tensors, held

Call = Callable[[Tensor, Tensor], Any]
CALLS: dict[str, Call] = {
    "a product": lambda x, ids: x @ x.T,
    "a transposed layout": lambda x, ids: x.T * 2,
    "a sum of other precision": lambda x, ids: x.sum(0, dtype=torch.float64),
    "a number that widens": lambda x, ids: x.bfloat16() + x[:1],
    "several at once": lambda x, ids: torch.max(x, dim=1),
    "several of floats": lambda x, ids: torch.native_layer_norm(x, (6,), None, None, 1e-5),
    "rows by number": lambda x, ids: x[ids],
    "rows by mask": lambda x, ids: x[torch.cat((ids, ids[:1])) > 1],
    "views": lambda x, ids: x.split(2, dim=1),
    "a copy of a view": lambda x, ids: x[:, 1:3].clone(),
    "a broadcast": lambda x, ids: x[:1].expand(4, 6),
    "another shape": lambda x, ids: torch.ops.aten._unsafe_view.default(x, [2, 12]),
    "in place": lambda x, ids: x.add_(1.0),
    "truth": lambda x, ids: x > 0.0,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_cached_fake_tensor_has_the_shape_strides_and_dtype_of_the_real_one(call: Call) -> None:
    ids = torch.tensor([2, 0, 2])
    due = tree_leaves(call(torch.zeros(4, 6), ids))
    with fake_tensors():
        x = torch.zeros(4, 6)
        for _ in range(2):
            got = tree_leaves(call(x, ids))
            assert [(each.shape, each.stride(), each.dtype) for each in got] == [
                (each.shape, each.stride(), each.dtype) for each in due
            ]
            assert all(isinstance(each, FakeTensor) == each.is_floating_point() for each in got)
            assert held(*got) == held(*due)


def test_a_cached_view_shares_memory_like_the_first_one() -> None:
    with fake_tensors() as mode:
        x = torch.zeros(1000)
        for _ in range(2):
            before = mode.live.now
            seen = [x.view(10, 100), torch.ops.aten._unsafe_view.default(x, [10, 100]), x.add_(1.0), x.contiguous()]
            assert mode.live.now == before
            assert seen[2] is x


def test_shapes_of_a_second_equal_layer_come_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    worked_out: list[str] = []
    dispatch = FakeTensorMode.dispatch

    def noted(self: FakeTensorMode, func: Any, *given: Any) -> Any:
        worked_out.append(str(func))
        return dispatch(self, func, *given)

    monkeypatch.setattr(FakeTensorMode, "dispatch", noted)
    with fake_tensors(), torch.no_grad():
        hidden, layers = torch.zeros(2, 5, 8), [nn.Linear(8, 8) for _ in range(2)]
        for layer in layers:
            worked_out.clear()
            hidden = hidden + layer(layer_norm(hidden, (8,))).relu()
    assert worked_out == []
