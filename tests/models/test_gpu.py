"""Laws that only a CUDA device can show; elsewhere what can be shown of them is."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from static_making import FAMILIES, ordinary, run, static
from tiny import make_causal
from torch import Tensor

from rlcore.types import Trajectories, tensor_on, to_device
from rlcore_cuda_graphs.choice import StaticDecoding, find_refusal
from rlcore_cuda_graphs.graphs import make_cuda_graphs

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
DEVICES = ["cpu", pytest.param("cuda", marks=on_cuda)]


def batch() -> Trajectories:
    return Trajectories.stack([[1, 2, 3], [4, 5]], [[False, True, True], [False, True]])


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_sent_arrives(device: str) -> None:
    numbers = torch.arange(1_000_000).reshape(1000, 1000)
    for array in (numbers, numbers.T, numbers[:0], numbers > 5, numbers.double()):
        arrived = to_device(array, device)
        assert arrived.device.type == device
        assert torch.equal(arrived.cpu(), array)
        assert torch.equal(to_device(arrived, "cpu"), array)
    assert tensor_on(device, [[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]
    moved = batch().with_columns(scores=torch.tensor([1.0, 2.0])).to(device)
    assert moved.tokens.tolist() == [[1, 2, 3], [4, 5, 0]]
    assert moved["scores"].tolist() == [1.0, 2.0]


def test_what_is_there_is_not_copied() -> None:
    numbers = torch.arange(3)
    assert to_device(numbers, "cpu") is numbers
    assert to_device(numbers, torch.device("meta")).is_meta


@on_cuda
@pytest.mark.parametrize("name", FAMILIES)
def test_recorded_steps_say_what_an_ordinary_decoder_says(name: str) -> None:
    model = make_causal(FAMILIES[name]).cuda()
    assert find_refusal(model, nullcontext, make_cuda_graphs()) is None
    kept = StaticDecoding()
    for _ in range(3):
        got, expected = run(partial(static, kept), model), run(ordinary, model)
        assert [len(each) for each in got] == [len(each) for each in expected]
        torch.testing.assert_close(torch.cat(got), torch.cat(expected), atol=1e-4, rtol=1e-4)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.05)
    assert kept._workspace is not None
    assert kept._workspace.num_recorded > 1
    assert kept._workspace.failure is None


@on_cuda
def test_a_recorded_step_never_waits_for_the_device() -> None:
    model = make_causal(FAMILIES["llama"]).cuda()
    decoder = static(StaticDecoding(), model, [[1, 2], [3]], 4)
    tokens: Tensor = decoder.start().logits.argmax(1)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            tokens = decoder.step(tokens).logits.argmax(1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
