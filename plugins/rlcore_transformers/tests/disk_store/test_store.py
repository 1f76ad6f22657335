"""Tests of the disk store: every item is read back exactly as it was written."""

from __future__ import annotations

import tempfile
from pathlib import Path

import datasets
import pytest
import torch

from rlcore.checkpoints.state import load_state, save_state
from rlcore.errors import DataError, EmptyStore
from rlcore.training import MemoryStore
from rlcore.types import Trajectories
from rlcore_transformers.disk_store import store as module
from rlcore_transformers.disk_store.config import DiskStoreConfig
from rlcore_transformers.disk_store.store import LOCK, DiskStore

T, F = True, False
FLOATS = [0.1, -0.0, float("inf"), float("nan"), 1e-40, 3.0]


def make_store(folder: Path, keep: int = 0) -> DiskStore:
    return DiskStore(DiskStoreConfig(path=str(folder), keep=keep))


def rows(*tokens: list[int]) -> Trajectories:
    batch = Trajectories.stack(
        tokens, [[F] + [T] * (len(row) - 1) for row in tokens], ended=[len(t) < 3 for t in tokens]
    )
    return batch.with_columns(values=batch.tokens * 1.5, scores=batch.tokens[:, 0] * 1.0)


def arrays(batch: Trajectories) -> dict[str, torch.Tensor]:
    fields = {name: getattr(batch, name) for name in ("tokens", "mask", "action_mask", "ended")}
    return fields | {f"column {name}": column for name, column in batch.columns.items()}


def assert_same(one: Trajectories, other: Trajectories) -> None:
    ours, theirs = arrays(one), arrays(other)
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        assert array.dtype == theirs[name].dtype, name
        assert array.shape == theirs[name].shape, name
        assert torch.equal(array.isnan(), theirs[name].isnan()), name
        assert torch.equal(bits(array), bits(theirs[name])), name


def bits(array: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a number, so that -0.0 differs from 0.0."""
    return array[~array.isnan()].view(torch.uint8)


def in_memory(*batches: Trajectories) -> Trajectories:
    store = MemoryStore()
    for batch in batches:
        store.append(batch)
    return store.take()


def test_every_stored_batch_is_taken_once_in_the_order_of_storing(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.append(rows([1, 2], [3, 4]))
    store.append(rows([5, 6, 7]))
    assert len(store) == 3
    batch = store.take()
    assert batch.tokens.tolist() == [[1, 2, 0], [3, 4, 0], [5, 6, 7]]
    assert batch.mask.tolist() == [[T, T, F], [T, T, F], [T, T, T]]
    assert batch.action_mask.tolist() == [[F, T, F], [F, T, F], [F, T, T]]
    assert batch.ended.tolist() == [T, T, F]
    assert batch["values"].tolist() == [[1.5, 3, 0], [4.5, 6, 0], [7.5, 9, 10.5]]
    assert batch["scores"].tolist() == [1, 3, 5]
    assert len(store) == 0
    with pytest.raises(EmptyStore, match="append a batch"):
        store.take()


@pytest.mark.parametrize("at_once", [1, 2, 128])
def test_ragged_batches_come_out_as_from_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(module, "ROWS_AT_ONCE", at_once)
    batches = [rows([1, 2, 3], [4, 5]), rows([6]), rows([7, 8], [9, 10], [11, 12, 13, 14, 15])]
    store = make_store(tmp_path)
    for batch in batches:
        store.append(batch)
    assert_same(store.take(), in_memory(*batches))


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
        torch.bfloat16, torch.float16, torch.float32, torch.float64,
    ],
    ids=str,
)  # fmt: skip
def test_every_dtype_is_restored_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    values = torch.tensor(FLOATS, dtype=torch.float64) if dtype.is_floating_point else torch.arange(6)
    batches = [
        rows([1, 2, 3], [4, 5]).with_columns(each=values.view(2, 3).to(dtype), one=values[:2].to(dtype)),
        rows([1, 2]).with_columns(each=values[4:].view(1, 2).to(dtype), one=values[4:5].to(dtype)),
    ]
    store = make_store(tmp_path)
    for batch in batches:
        store.append(batch)
    assert_same(store.take(), in_memory(*batches))


def test_integers_larger_than_floats_can_represent_are_restored_exactly(tmp_path: Path) -> None:
    store, batch = make_store(tmp_path), rows([2**62 + 1, -(2**63)])
    store.append(batch)
    assert store.take().tokens.tolist() == [[2**62 + 1, -(2**63)]]


def test_left_padding_and_its_contents_are_restored(tmp_path: Path) -> None:
    batch = rows([1, 2, 3], [4, 5, 6]).each(lambda array: array.flip(-1))
    batch = batch.with_columns(values=torch.full((2, 3), 7.0), embedding=torch.ones(2, 5), none=torch.ones(2, 0))
    store = make_store(tmp_path)
    store.append(batch)
    assert_same(store.take(), batch)


def test_a_batch_without_sequences_can_be_stored(tmp_path: Path) -> None:
    none = rows([1, 2]).each(lambda array: array[:0])
    store = make_store(tmp_path)
    store.append(none)
    assert len(store) == 0
    assert_same(store.take(), none)
    store.append(none)
    store.append(rows([1, 2, 3]))
    assert_same(store.take(), in_memory(none, rows([1, 2, 3])))


def test_a_batch_may_be_changed_in_place_after_it_was_put_in_and_after_it_was_taken(tmp_path: Path) -> None:
    store, given = make_store(tmp_path, keep=1), rows([1, 2], [3, 4])
    store.append(given)
    given.tokens.zero_()
    state = store.state_dict()
    taken = store.take()
    taken.tokens.add_(10)
    assert taken.tokens.tolist() == [[11, 12], [13, 14]]
    assert state["parts"][0]["tokens"].tolist() == [[1, 2], [3, 4]]
    (kept,) = tmp_path.glob("*/taken/000000/*.arrow")
    assert datasets.Dataset.from_file(str(kept))["tokens"][:] == [[1, 2], [3, 4]]


def test_a_store_is_restored_from_a_checkpoint_after_its_files_are_gone(tmp_path: Path) -> None:
    batches = [rows([1, 2], [3, 4]), rows([5, 6, 7])]
    store = make_store(tmp_path / "one")
    for batch in batches:
        store.append(batch)
    save_state(tmp_path / "state", {"store": store.state_dict()})
    store.take()
    del store
    assert not list((tmp_path / "one").iterdir())
    for other in (make_store(tmp_path / "two"), MemoryStore()):
        other.append(rows([8, 9]))
        other.load_state_dict(load_state(tmp_path / "state")["store"])
        assert len(other) == 3
        assert_same(other.take(), in_memory(*batches))


def test_a_state_does_not_change_with_the_store(tmp_path: Path) -> None:
    store, other = make_store(tmp_path / "one"), make_store(tmp_path / "two")
    store.append(rows([1, 2]))
    state = store.state_dict()
    store.append(rows([3, 4]))
    store.take()
    other.load_state_dict(state)
    assert_same(other.take(), rows([1, 2]))
    other.append(rows([1]))
    other.load_state_dict(store.state_dict())
    assert len(other) == 0


def test_batches_that_wait_in_the_store_can_be_opened_with_datasets(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.append(rows([1, 2, 3], [4, 5]))
    files = [str(path) for path in tmp_path.glob("rlcore-rollouts-*/*.arrow")]
    opened = datasets.load_dataset("arrow", data_files=files, cache_dir=str(tmp_path / "cache"))["train"]
    assert opened[1] == {
        "tokens": [4, 5, 0], "mask": [T, T, F], "action_mask": [F, T, F], "ended": T,
        "values": [6.0, 7.5, 0.0], "scores": 4.0,
    }  # fmt: skip
    assert opened.features["tokens"] == datasets.List(datasets.Value("int64"), length=3)
    assert opened.features["mask"] == datasets.List(datasets.Value("bool"), length=3)
    assert opened.features["scores"] == datasets.Value("float32")
    assert len(store) == 2


@pytest.mark.slow
def test_a_taken_batch_is_memory_mapped_and_not_read_into_memory(tmp_path: Path) -> None:
    store, height, width = make_store(tmp_path), 2048, 1024  # 3 x 2 M entries: tokens and two columns
    for seed in range(3):
        batch = Trajectories(
            tokens=torch.full((height, width), seed), mask=torch.ones(height, width, dtype=torch.bool),
            action_mask=torch.ones(height, width, dtype=torch.bool), ended=torch.ones(height, dtype=torch.bool),
            columns={"values": torch.ones(height, width), "logprobs": torch.ones(height, width)},
        )  # fmt: skip
        store.append(batch)
    size = 3 * sum(array.nbytes for array in arrays(batch).values())
    del batch
    before = private_memory()
    taken = store.take()
    grown = private_memory() - before
    assert taken.tokens[:, 5].float().mean() == 1
    assert size > 100e6
    assert grown < 0.2 * size
    copied = in_memory(taken, taken)
    assert len(copied) == 6 * height
    assert private_memory() - before > size  # guard: this confirms that the measurement above is valid


def private_memory() -> int:
    """Return the number of private bytes of this process, without file-backed memory."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def test_other_columns_than_before_are_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.append(rows([1, 2]))
    for other in (
        rows([3, 4]).with_columns(more=torch.ones(1)),
        rows([3, 4]).with_columns(scores=torch.ones(1, dtype=torch.float64)),
        rows([3, 4]).with_columns(scores=torch.ones(1, 2)),
    ):
        with pytest.raises(DataError, match=r"batch 1 of the store differs from batch 0 in '(more|scores)'"):
            store.append(other)
    store.append(rows([3, 4, 5]))
    assert store.take()["scores"].tolist() == [1, 3]


def test_no_file_is_left_of_a_batch_that_is_refused_or_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(tmp_path)

    def names() -> list[str]:
        return sorted(path.name for path in store.folder.iterdir() if path.name != LOCK)

    store.append(rows([1, 2]))
    with pytest.raises(DataError):
        store.append(rows([3, 4]).with_columns(more=torch.ones(1)))
    assert names() == ["000000.arrow"]
    with monkeypatch.context() as patched:
        patched.setattr(module.ArrowWriter, "finalize", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            store.append(rows([3, 4]))
    assert names() == ["000000.arrow"]
    store.append(rows([5, 6]))
    assert names() == ["000000.arrow", "000001.arrow"]
    state = store.state_dict()
    assert names() == ["000000.arrow", "000001.arrow"]
    assert store.take().tokens.tolist() == [[1, 2], [5, 6]]
    assert names() == []
    store.append(rows([7, 8]))
    store.load_state_dict(state)
    assert len(names()) == 2
    assert store.take().tokens.tolist() == [[1, 2], [5, 6]]
    assert names() == []


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (torch.ones(1, 2, 2), r"'x' cannot be stored: it is torch.float32 of shape \[1, 2, 2\]"),
        (torch.ones(1, dtype=torch.complex64), "'x' cannot be stored: it is torch.complex64"),
    ],
)
def test_a_column_that_arrow_cannot_store_is_refused(tmp_path: Path, column: torch.Tensor, said: str) -> None:
    store = make_store(tmp_path)
    with pytest.raises(DataError, match=said):
        store.append(rows([1, 2]).with_columns(x=column))
    with pytest.raises(DataError, match="column 'mask' cannot be stored"):
        store.append(rows([1, 2]).with_columns(mask=torch.ones(1)))
    assert len(store) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_full_disk_is_an_error_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(tmp_path)
    store.append(rows([1, 2]))
    with monkeypatch.context() as patched, Path("/dev/full").open("wb", buffering=0) as full:
        patched.setattr(tempfile, "NamedTemporaryFile", lambda **_: full)
        with pytest.raises(OSError, match="No space left"):
            store.take()
    assert store.take().tokens.tolist() == [[1, 2]]
