"""Tests that need a CUDA device; skipped elsewhere."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from static_making import FAMILIES, make_causal, make_static, ordinary, plain, run, static
from torch import Tensor

from rlcore_cuda_graphs.choice import find_refusal
from rlcore_cuda_graphs.graphs import make_cuda_graphs

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@on_cuda
@pytest.mark.parametrize("name", FAMILIES)
def test_replayed_steps_have_the_outputs_of_an_ordinary_decoder(name: str) -> None:
    model = make_causal(FAMILIES[name]).cuda()
    assert find_refusal(model, nullcontext, ordinary=plain, make_graph=make_cuda_graphs()) is None
    kept = make_static()
    for _ in range(3):
        got, expected = run(partial(static, kept), model), run(ordinary, model)
        assert [len(each) for each in got] == [len(each) for each in expected]
        torch.testing.assert_close(torch.cat(got), torch.cat(expected), atol=1e-4, rtol=1e-4)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.05)
    assert kept._workspace is not None
    assert kept._workspace.num_steps > 1
    assert kept._workspace.failure is None


@on_cuda
def test_a_replayed_step_never_waits_for_the_device() -> None:
    model = make_causal(FAMILIES["llama"]).cuda()
    decoder = static(make_static(), model, [[1, 2], [3]], 4)
    tokens: Tensor = decoder.start().logits.argmax(1)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            tokens = decoder.step(tokens).logits.argmax(1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
