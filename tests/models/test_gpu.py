"""Tests that need a CUDA device; tests elsewhere cover the same code on the CPU as far as possible."""

from __future__ import annotations

import pytest
import torch

from rlcore.types import Trajectories, tensor_on, to_device

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
DEVICES = ["cpu", pytest.param("cuda", marks=on_cuda)]


def batch() -> Trajectories:
    return Trajectories.stack([[1, 2, 3], [4, 5]], [[False, True, True], [False, True]])


@pytest.mark.parametrize("device", DEVICES)
def test_a_tensor_sent_to_a_device_arrives_unchanged(device: str) -> None:
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


def test_a_tensor_already_on_the_device_is_not_copied() -> None:
    numbers = torch.arange(3)
    assert to_device(numbers, "cpu") is numbers
    assert to_device(numbers, torch.device("meta")).is_meta
