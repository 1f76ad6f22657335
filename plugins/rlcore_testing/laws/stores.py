"""Laws of rollout stores: `take` returns every appended sequence once, in order and unchanged."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch

from rlcore.checkpoints.state import load_state, save_state
from rlcore.errors import EmptyStore
from rlcore.plugins.registry import all_registries
from rlcore.protocols import RolloutStore
from rlcore.types import Trajectories
from rlcore_testing.law import LawBroken, Subject, law, require
from rlcore_testing.rig.compare_runs import compare, make_batch
from rlcore_testing.rig.isolate import FILES, at_another_time, call_in_new_process, undisturbed

STORES = "rollout_stores"
DROP = "`load_state_dict` must remove the current sequences first"
WIDTHS = (4, 9, 1, 6)
HEIGHTS = (2, 4, 1, 3)
TYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64,
)  # fmt: skip


@law(STORES)
def batches_come_back_in_order(subject: Subject) -> None:
    """`take` returns all appended sequences as one batch, in the order of `append`, for any number of them in each.

    Equal sequences, which a policy may sample, are kept too.
    """
    store, batches = make_store(subject), [make_batch(seed, height=height) for seed, height in enumerate(HEIGHTS)]
    batches.append(make_batch(1, height=HEIGHTS[1]))
    _fill(store, batches)
    compare(batches, store.take(), "keep every sequence, in the order of `append`")


@law(STORES)
def batches_of_different_widths_come_back_whole(subject: Subject) -> None:
    """Batches may have different widths and padding on either side; no token is lost or added."""
    store = make_store(subject)
    batches = [make_batch(i, width=width, left=i % 2 == 1) for i, width in enumerate(WIDTHS)]
    _fill(store, batches)
    compare(batches, store.take(), "pad narrower batches and their `mask`, as `Trajectories.concat` does")


@law(STORES)
def an_empty_store_raises(subject: Subject) -> None:
    """`take` raises `rlcore.errors.EmptyStore` on a new store and after a previous `take`."""
    store = make_store(subject)
    _expect_empty(store, "a new store")
    store.append(make_batch(0))
    store.take()
    _expect_empty(store, "a store after `take`")


@law(STORES)
def take_empties_the_store(subject: Subject) -> None:
    """A second `take` returns only the sequences appended since the first."""
    store, later = make_store(subject), make_batch(1)
    store.append(make_batch(0))
    store.take()
    store.append(later)
    compare([later], store.take(), "empty the store in `take`")


@law(STORES)
def its_length_counts_sequences(subject: Subject) -> None:
    """`len` is the number of sequences, not batches, appended since the last `take`."""
    store = make_store(subject)
    seen = [len(store)]
    for seed, height in ((0, 3), (1, 1)):
        store.append(make_batch(seed, height=height))
        seen.append(len(store))
    store.take()
    seen.append(len(store))
    require(
        seen == [0, 3, 4, 0],
        "len should be 0, 3, 4 and 0 at the start, after three sequences, after one more and after `take`; it was "
        f"{', '.join(map(str, seen))}; count sequences in `__len__`",
    )


@law(STORES)
def types_are_kept(subject: Subject) -> None:
    """Tokens stay int64 and masks bool; columns of any dtype, [B] or [B, T], keep dtype and values."""
    store, batches = make_store(subject), [make_batch(seed) for seed in range(2)]
    names = [str(kind).removeprefix("torch.") for kind in TYPES]
    for i, batch in enumerate(batches):
        columns = {f"{name}_each": (batch.tokens * 3 + i).to(kind) for name, kind in zip(names, TYPES, strict=True)}
        columns |= {f"{name}_all": column[:, 0] for name, column in columns.items()}
        batches[i] = batch.with_columns(**columns)
    _fill(store, batches)
    compare(batches, store.take(), "keep the dtype of every tensor")


@law(STORES)
def nan_and_infinity_are_kept(subject: Subject) -> None:
    """NaN and infinities in columns are kept."""
    store, batch = make_store(subject), make_batch(0)
    odd = torch.tensor([float("nan"), float("inf"), float("-inf")])
    batch = batch.with_columns(values=odd[:, None].expand(batch.tokens.shape).clone(), scores=odd)
    _fill(store, [batch, make_batch(1)])
    compare([batch, make_batch(1)], store.take(), "store NaN and infinities unchanged")


@law(STORES)
def hundreds_of_batches_are_kept(subject: Subject) -> None:
    """Two hundred batches can be appended before a `take`, and none is dropped."""
    store, batches = make_store(subject), [make_batch(seed, height=1) for seed in range(200)]
    _fill(store, batches)
    compare(batches, store.take(), "do not limit the number of batches, or raise the limit with an option")


@law(STORES)
def taken_batches_are_not_changed(subject: Subject) -> None:
    """A taken batch does not change when the store is filled and emptied again."""
    store, batches = make_store(subject), [make_batch(seed) for seed in range(2)]
    _fill(store, batches)
    taken = store.take()
    _fill(store, [make_batch(seed) for seed in range(5, 7)])
    store.take()
    compare(batches, taken, "return memory from `take` that the store does not write to again")


@law(STORES)
def appended_batches_are_not_changed(subject: Subject) -> None:
    """`append` and `take` do not change the caller's batch."""
    store, batch = make_store(subject), make_batch(0, left=True)
    before = batch.each(torch.clone)
    _fill(store, [batch, make_batch(1)])
    store.take()
    compare([before], batch, "copy the batch in `append` before changing it", what="the batch that was appended")


@law(STORES)
def two_stores_share_nothing(subject: Subject) -> None:
    """Appending to or taking from one store does not change another."""
    (one, first), (other, second) = ((make_store(subject), make_batch(seed)) for seed in range(2))
    one.append(first)
    other.append(second)
    compare([first], one.take(), "keep batches on the instance, not on the class or in the module")
    compare([second], other.take(), "keep batches on the instance, not on the class or in the module")


@law(STORES)
def same_appends_same_take(subject: Subject) -> None:
    """A store neither depends on nor changes the global random state, and keeps sequences at any later time."""
    taken = []
    for seed in range(2):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002  a store may use the global generator
        with undisturbed("the store", but=[FILES]):
            store = make_store(subject)
            _fill(store, [make_batch(10), make_batch(11)])
            taken.append(store.take())
    advice = "do not depend on the global random state"
    compare([taken[0]], taken[1], advice, what="a second store after another seed")
    store = make_store(subject)
    _fill(store, [make_batch(10), make_batch(11)])
    with at_another_time():
        compare([taken[0]], store.take(), "do not read the clock", what="a batch that is taken much later")


@law(STORES)
def state_dict_does_not_change_the_store(subject: Subject) -> None:
    """`state_dict` does not change the store, and later appends do not change a returned state."""
    store, batches = make_store(subject), [make_batch(seed) for seed in range(3)]
    _fill(store, batches[:2])
    with tempfile.TemporaryDirectory(prefix="rlcore-law-") as folder:
        state = store.state_dict()
        store.append(batches[2])
        state = _through_disk(state, Path(folder))
    compare(batches, store.take(), "do not change the store in `state_dict`")
    store.load_state_dict(state)
    compare(batches[:2], store.take(), "return a copy of the list from `state_dict`")


@law(STORES)
def a_loaded_state_replaces_the_sequences(subject: Subject) -> None:
    """`load_state_dict` replaces the store's sequences with those of the state; an empty state empties the store."""
    store, batch = make_store(subject), make_batch(0)
    with tempfile.TemporaryDirectory(prefix="rlcore-law-") as folder:
        empty = _through_disk(store.state_dict(), Path(folder))
        store.append(batch)
        state = _through_disk(store.state_dict(), Path(folder))
    store.append(make_batch(1))
    store.load_state_dict(state)
    require(
        len(store) == len(batch), f"len should be {len(batch)} after `load_state_dict`; it was {len(store)}; {DROP}"
    )
    compare([batch], store.take(), DROP)
    store.append(make_batch(2))
    store.load_state_dict(empty)
    _expect_empty(store, "a store after loading an empty state")


@law(STORES)
def a_state_continues_in_a_new_process(subject: Subject) -> None:
    """A store that is restored from a saved state in a new process returns the same as an uninterrupted store."""
    store, batches = make_store(subject), [make_batch(i, width=width) for i, width in enumerate(WIDTHS)]
    _fill(store, batches[:2])
    arguments = {"name": subject.it.qualified, "options": dict(subject.options)}
    with tempfile.TemporaryDirectory(prefix="rlcore-law-") as folder:
        save_state(Path(folder) / "state", store.state_dict())
        save_state(Path(folder) / "more", [attrs.asdict(batch, recurse=False) for batch in batches[2:]])
        length = call_in_new_process(
            f"{__name__}:restore_and_take", {**arguments, "folder": folder}, what="restoring a store in a new process"
        )
        seen = Trajectories(**load_state(Path(folder) / "taken"))
    advice = "return all sequences from `state_dict`, or the path of permanent files, and restore them"
    expected = sum(map(len, batches[:2]))
    require(
        length == expected,
        f"len should be {expected} after `load_state_dict` in a new process; it was {length}; {advice}",
    )
    compare(batches, seen, advice, what="the batch taken in a new process")


def restore_and_take(name: str, options: Mapping[str, object], folder: str) -> int:
    """Restore a store, append the rest, take and save; runs in the process of `a_state_continues_in_a_new_process`."""
    store = make_store(Subject("", (), all_registries().rollout_stores.get(name), options))
    store.load_state_dict(load_state(Path(folder) / "state"))
    length = len(store)
    for fields in load_state(Path(folder) / "more"):
        store.append(Trajectories(**fields))
    save_state(Path(folder) / "taken", attrs.asdict(store.take(), recurse=False))
    return length


def make_store(subject: Subject) -> RolloutStore:
    """Build the store under test as a run does."""
    target: Any = subject.it.target()
    options = subject.config()
    store: RolloutStore = target() if options is None else target(options)
    return store


def _fill(store: RolloutStore, batches: Sequence[Trajectories]) -> None:
    for batch in batches:
        store.append(batch)


def _through_disk(state: object, folder: Path) -> Any:
    save_state(folder / "state", state)
    return load_state(folder / "state")


def _expect_empty(store: RolloutStore, what: str) -> None:
    try:
        store.take()
    except EmptyStore:
        return
    except Exception as error:  # a plugin's store may raise anything
        raise LawBroken(
            f"`take` of {what} should raise rlcore.errors.EmptyStore; it raised {type(error).__name__}: {error}; "
            "raise EmptyStore if there are no sequences"
        ) from error
    raise LawBroken(f"`take` of {what} should raise rlcore.errors.EmptyStore; it returned; raise EmptyStore in `take`")
