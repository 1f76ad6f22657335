"""Tests of what FSDP decides on each rank, in one process: rows of a part, weights to drop, optimizers to refuse."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlcore.config import structure
from rlcore.errors import ConfigError
from rlcore.settings import TrainConfig
from rlcore.training import stack_samples
from rlcore.training.build import assemble
from rlcore.training.inputs import Inputs
from rlcore_shard import fsdp
from rlcore_shard.fsdp import FullySharded
from rlcore_testing.small import SAMPLES, make_llama, make_tokenizer


class Mesh:
    """The mesh of `size` ranks, as rank `rank` sees it."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size_ = rank, size

    def get_local_rank(self, name: str) -> int:
        assert name == "shard"
        return self.rank

    def __getitem__(self, name: str) -> Any:
        assert name == "shard"
        return SimpleNamespace(size=lambda: self.size_)


@pytest.mark.parametrize("size", [2, 3, 4, 7])
@pytest.mark.parametrize("rows", [1, 4, 5, 10, 13])
def test_every_rank_restores_the_rows_that_torch_gives_it(
    rows: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch cuts as `torch.chunk` does: 10 rows among 4 ranks are 3, 3, 3 and 1, and the last of 7 ranks have none."""
    whole = torch.arange(2.0 * rows).view(rows, 2)
    chunks = [*whole.chunk(size), *[whole[:0]] * size][:size]
    part: Any = SimpleNamespace(shape=whole.shape)
    for rank, chunk in enumerate(chunks):
        sharding = object.__new__(FullySharded)
        sharding._mesh = Mesh(rank, size)  # type: ignore[assignment]
        monkeypatch.setattr(fsdp, "_local", lambda _, own=chunk: own)
        assert torch.equal(sharding._rows(part, whole), chunk)


def test_an_undivided_tensor_is_restored_whole() -> None:
    sharding, whole = object.__new__(FullySharded), torch.ones(5)
    sharding._mesh = Mesh(1, 2)  # type: ignore[assignment]
    assert torch.equal(sharding._rows(torch.zeros(5), whole), whole)


@pytest.mark.parametrize("name", ["Muon", "Adafactor", "LBFGS"])
def test_an_optimizer_of_whole_matrices_is_refused_for_parts_of_them(name: str) -> None:
    """Muon orthogonalises a whole gradient; that of some of its rows is another step."""
    weight = torch.nn.Parameter(torch.eye(4))
    sharding = object.__new__(FullySharded)
    whole = type(f"Own{name}", (getattr(torch.optim, name),), {})
    for kind in (getattr(torch.optim, name), whole):
        with pytest.raises(ConfigError, match=rf"run.shard = 'fsdp': {kind.__name__} needs whole weights"):
            sharding.drive(kind([weight], lr=0.1))
    adamw = torch.optim.AdamW([weight])
    assert sharding.drive(adamw) is adamw


def test_gathered_weights_are_gathered_again_after_an_optimizer_step(tmp_path: Path) -> None:
    """A passage without gradients may lie between the backward pass and the step; its whole weights are then old."""
    settings = {
        "trainer": {"name": "sft", "batch_size": 2, "optimizer": {"lr": 0.1}}, "loggers": [],
        "run": {"root": str(tmp_path), "steps": 2, "shard": "fsdp"},
    }  # fmt: skip
    inputs = Inputs(model=make_llama(), tokenizer=make_tokenizer(), samples=[list(sample) for sample in SAMPLES])
    parts = assemble(structure(TrainConfig, settings, where="test"), inputs, "test")
    try:
        policy, sharding = parts.trainer.policy(), parts.trainer.updater.sharding  # type: ignore[attr-defined]
        batch = stack_samples(parts.run.samples[:2])
        with sharding.exchanging(True):
            sharding.backward(-policy.score(batch).logprobs[batch.action_mask].sum())
        policy.gather()
        before = [each.detach().clone() for each in policy.module.parameters()]
        sharding.step(1.0)
        assert not any(each.numel() for each in policy.module.parameters())
        policy.gather()
        after = [each.detach() for each in policy.module.parameters()]
        assert [each.shape for each in before] == [each.shape for each in after]
        assert not all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    finally:
        assert parts.lock is not None
        parts.lock.release()
