from __future__ import annotations

import pytest
import torch

from rlcore.training.rollout import MemoryStore
from rlcore.types import Trajectories

T, F = True, False


def rows(*tokens: list[int]) -> Trajectories:
    batch = Trajectories.stack(tokens, [[F] + [T] * (len(row) - 1) for row in tokens])
    return batch.with_columns(values=batch.tokens * 1.5, scores=batch.tokens[:, 0] * 1.0)


def test_every_stored_batch_is_taken_once_in_the_order_of_storing() -> None:
    store = MemoryStore()
    store.append(rows([1, 2], [3, 4]))
    store.append(rows([5, 6, 7]))
    assert len(store) == 3
    batch = store.take()
    assert batch.tokens.tolist() == [[1, 2, 0], [3, 4, 0], [5, 6, 7]]
    assert batch["scores"].tolist() == [1, 3, 5]
    assert len(store) == 0


def test_a_store_returns_the_very_batch_that_was_put_in() -> None:
    store, batch = MemoryStore(), rows([1, 2])
    store.append(batch)
    assert store.take() is batch


def test_taking_from_an_empty_store_is_an_error() -> None:
    with pytest.raises(LookupError, match="empty"):
        MemoryStore().take()


def test_a_store_is_restored_from_its_state() -> None:
    store, other = MemoryStore(), MemoryStore()
    store.append(rows([1, 2], [3, 4]))
    store.append(rows([5, 6, 7]))
    other.load_state_dict(store.state_dict())
    ours, theirs = store.take(), other.take()
    assert len(theirs) == 3
    assert torch.equal(ours.tokens, theirs.tokens)
    assert torch.equal(ours.action_mask, theirs.action_mask)
    assert torch.equal(ours["values"], theirs["values"])


def test_the_state_of_an_empty_store_is_restored_too() -> None:
    store = MemoryStore()
    store.append(rows([1, 2]))
    store.load_state_dict(MemoryStore().state_dict())
    assert len(store) == 0
