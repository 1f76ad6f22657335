"""A store of limited size that drops the oldest sequences."""

import torch

from rlcore.config import config, option
from rlcore.errors import EmptyStore
from rlcore.types import Trajectories


@config
class NewestConfig:
    """Options of the store."""

    most: int = option(1024, "maximum number of sequences", ge=1)


class NewestStore:
    def __init__(self, config):
        self.most, self.rows = config.most, []

    def append(self, batch):
        self.rows = [*self.rows, *batch.split(1)][-self.most :]

    def take(self):
        if not self.rows:
            raise EmptyStore("the rollout store is empty: append a batch before taking one")
        rows, self.rows = self.rows, []
        return Trajectories.concat(rows)

    def __len__(self):
        return len(self.rows)

    def state_dict(self):
        return {"rows": [[row.tokens, row.mask, row.action_mask, row.ended, dict(row.columns)] for row in self.rows]}

    def load_state_dict(self, state):
        self.rows = [Trajectories(*row) for row in state["rows"]]


store = NewestStore(NewestConfig(most=2))
store.append(Trajectories.stack([[1, 2], [3, 4, 5], [6, 7]], [[False, True], [False, True, True], [False, True]]))
other = NewestStore(NewestConfig(most=2))
other.load_state_dict(store.state_dict())
assert len(store) == 2
taken = store.take()
assert taken.action_tokens == [[4, 5], [7]]
assert len(store) == 0
assert torch.equal(other.take().tokens, taken.tokens)
