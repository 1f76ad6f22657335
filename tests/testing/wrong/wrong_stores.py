"""Rollout stores, each wrong in one thing."""

import random
import time

import attrs
import numpy as np
import torch

from rlcore.training.rollout import MemoryStore
from rlcore.types import Trajectories


class Reversed(MemoryStore):
    def append(self, batch):
        self._parts.insert(0, batch)


class Narrow(MemoryStore):
    """Cut every batch to the width of the first."""

    def append(self, batch):
        wide = batch.tokens.shape[1]
        width = self._parts[0].tokens.shape[1] if self._parts else wide
        super().append(batch.each(lambda array: array[:, :width] if array.dim() > 1 else array))


class Returning(MemoryStore):
    def take(self):
        return super().take() if self._parts else Trajectories.stack([], [])


class KeyErroring(MemoryStore):
    def take(self):
        if not self._parts:
            raise KeyError("nothing here")
        return super().take()


class Remembering(MemoryStore):
    def take(self):
        kept = list(self._parts)
        batch = super().take()
        self._parts = kept
        return batch


class CountingBatches(MemoryStore):
    def __len__(self):
        return len(self._parts)


class Widening(MemoryStore):
    """Keep every number as a float32."""

    def take(self):
        batch = super().take()
        return batch.with_columns(**{name: column.float() for name, column in batch.columns.items()})


class Cleaning(MemoryStore):
    def append(self, batch):
        super().append(batch.with_columns(**{name: column.nan_to_num() for name, column in batch.columns.items()}))


class Bounded(MemoryStore):
    def append(self, batch):
        super().append(batch)
        self._parts = self._parts[-100:]


class Reusing(MemoryStore):
    """Hand out the same memory every time."""

    def __init__(self):
        super().__init__()
        self.taken = None

    def take(self):
        batch = super().take()
        if self.taken is not None and self.taken.tokens.shape == batch.tokens.shape:
            self.taken.tokens.copy_(batch.tokens)
            return attrs.evolve(batch, tokens=self.taken.tokens)
        self.taken = batch
        return batch


class Spoiling(MemoryStore):
    """Centre the caller's scores in place."""

    def append(self, batch):
        batch["scores"].sub_(batch["scores"].mean())
        super().append(batch)


class Shared(MemoryStore):
    parts: list = []  # noqa: RUF012  shared by all of them, on purpose

    def __init__(self):
        self._parts = self.parts

    def take(self):
        batch = Trajectories.concat(self._parts)
        self._parts.clear()
        return batch


class Shuffling(MemoryStore):
    """Keep the global state, but shuffle with it."""

    def take(self):
        batch, state = super().take(), torch.get_rng_state()
        order = torch.randperm(len(batch))
        batch = batch.each(lambda array: array[order])
        torch.set_rng_state(state)
        return batch


class Drawing(MemoryStore):
    def append(self, batch):
        random.random()
        super().append(batch)


class DrawingFromNumpy(MemoryStore):
    def append(self, batch):
        np.random.rand()  # noqa: NPY002  the global one, on purpose
        super().append(batch)


class Draining(MemoryStore):
    def state_dict(self):
        state = super().state_dict()
        self._parts = []
        return state


class Growing(MemoryStore):
    """Give its own list as the state."""

    def state_dict(self):
        return {"parts": self._fields}

    def append(self, batch):
        super().append(batch)
        self._fields.append(attrs.asdict(batch, recurse=False))

    def __init__(self):
        super().__init__()
        self._fields = []

    def take(self):
        self._fields = []
        return super().take()

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self._fields = [attrs.asdict(part, recurse=False) for part in self._parts]


class Adding(MemoryStore):
    def load_state_dict(self, state):
        self._parts += [Trajectories(**part) for part in state["parts"]]


class Elsewhere(MemoryStore):
    """Leave what is held in this process, and put a note where it is into the state."""

    held: dict = {}  # noqa: RUF012  this process's, on purpose

    def state_dict(self):
        self.held[str(id(self))] = list(self._parts)
        return {"where": str(id(self))}

    def load_state_dict(self, state):
        self._parts = list(self.held.get(state["where"], []))


class SmallestFirst(MemoryStore):
    """Give batches with fewer sequences first."""

    def take(self):
        self._parts.sort(key=len)
        return super().take()


class OfEachOne(MemoryStore):
    """Keep equal sequences once."""

    def take(self):
        batch, first = super().take(), {}
        for row, (tokens, real) in enumerate(zip(batch.tokens, batch.mask, strict=True)):
            first.setdefault(tuple(tokens[real].tolist()), row)
        return batch.rows(torch.tensor(list(first.values())))


class Expiring(MemoryStore):
    """Keep the last batch alone after an hour."""

    def append(self, batch):
        super().append(batch)
        self.appended_at = time.time()

    def take(self):
        if self._parts and time.time() > self.appended_at + 3600:
            self._parts = self._parts[-1:]
        return super().take()
