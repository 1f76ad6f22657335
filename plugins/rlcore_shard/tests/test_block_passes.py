"""Test of passes that complete one block of weights at a time, in one process."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rlcore.config import structure
from rlcore.settings import TrainConfig
from rlcore.training import by_block, stack_samples
from rlcore.training.build import assemble
from rlcore.training.inputs import Inputs
from rlcore.types import PolicyOutputs, Trajectories
from rlcore_testing.small import SAMPLES, make_llama, make_tokenizer

WIDTH = 24
MATRICES = {(WIDTH, WIDTH), (WIDTH // 2, WIDTH), (2 * WIDTH, WIDTH), (WIDTH, 2 * WIDTH)}
"""Shapes of a block's matrices: of queries and outputs, of keys and values, and of the feed-forward layer."""


class Copies(TorchDispatchMode):
    """Counts the matrices of blocks that were converted to 16 bits and exist."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kept = set[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and out.dtype == torch.bfloat16 and tuple(out.shape) in MATRICES:
            storage = out.untyped_storage()
            self.kept.add(storage._cdata)
            weakref.finalize(storage, self.kept.discard, storage._cdata)
        return out


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Any]:
    """A run of one process with bf16, whose weights are divided."""
    settings = {
        "trainer": {"name": "sft", "batch_size": 2}, "loggers": [],
        "run": {"root": str(tmp_path), "steps": 1, "shard": "fsdp", "mixed_precision": "bf16"},
    }  # fmt: skip
    model, samples = make_llama(layers=3, width=WIDTH), [list(sample) for sample in SAMPLES]
    inputs = Inputs(model=model, tokenizer=make_tokenizer(), samples=samples)
    parts = assemble(structure(TrainConfig, settings, where="test"), inputs, "test")
    yield parts
    assert parts.lock is not None
    parts.lock.release()


@contextmanager
def whole(policy: Any) -> Iterator[None]:
    policy.gather()
    yield
    policy.drop()


@torch.no_grad()
def score(policy: Any, context: Any, batch: Trajectories) -> tuple[PolicyOutputs, list[int]]:
    """Return the outputs of a pass, and how many copies of weights exist where each block begins."""
    blocks, found = policy.blocks(policy.module)[::-1], list[int]()
    with context(policy):
        copies = Copies()
        handles = [each.register_forward_pre_hook(lambda *_: found.append(len(copies.kept))) for each in blocks]
        with copies:
            outputs = policy.score(batch, entropy=True)
    for each in handles:
        each.remove()
    return outputs, found


def test_the_16_bit_copies_of_a_block_go_with_its_weights_and_results_are_bit_equal(run: Any) -> None:
    """A block of the Llama has 7 matrices, of which autocast keeps a copy each."""
    policy, batch = run.trainer.policy(), stack_samples(run.run.samples[:2])
    policy.drop()
    (expected, kept), (outputs, by_block_kept) = (score(policy, context, batch) for context in (whole, by_block))
    assert kept == [0, 7, 14]
    assert by_block_kept == [0, 0, 0]
    assert torch.equal(outputs.logprobs, expected.logprobs)
    assert torch.equal(outputs.entropy, expected.entropy)
