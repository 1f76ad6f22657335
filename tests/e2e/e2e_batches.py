"""Form rounds in several processes, and write what each of them fetches: e2e_batches.py FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from rlcore.checkpoints.state import save_state
from rlcore.errors import RanksError
from rlcore.ranks import Ranks
from rlcore.ranks.rounds import ROW, Round
from rlcore.types import Trajectories


def make_batch(rows: int) -> Trajectories:
    """Return sequences of 1 to `rows` tokens; token t of row i and its value are 100 i + t."""
    tokens = [[100 * row + at for at in range(1 + row)] for row in range(rows)]
    ended = [row % 3 == 0 for row in range(rows)]
    batch = Trajectories.stack(tokens, [[at % 100 > 0 for at in row] for row in tokens], ended=ended)
    return batch.with_columns(values=batch.tokens.double(), scores=torch.arange(rows) / 2)


if __name__ == "__main__":
    ranks, folder = Ranks(), Path(sys.argv[1])
    found: dict[str, dict[str, object]] = {}
    gather, ranks.gather = ranks.gather, None  # nothing is pickled where every process has rows
    for rows, group in ((7, 1), (1, 1), (8, 4)):
        batch = make_batch(rows)
        mine = torch.tensor(ranks.share(rows, group=group), dtype=torch.long)
        if rows // group < ranks.world:
            ranks.gather = gather
        whole = Round.of(ranks, batch.rows(mine).with_columns(**{ROW: mine})).whole()
        arrays = {"tokens": whole.tokens, "mask": whole.mask, "action_mask": whole.action_mask, "ended": whole.ended}
        found[f"{rows} by {group}"] = arrays | dict(whole.columns)
    ranks.gather = gather
    batch = make_batch(2)
    try:
        Round.of(ranks, batch.rename(values="wrong") if ranks.rank else batch)
    except RanksError as error:
        found["error"] = {"text": str(error)}
    save_state(folder / f"rank-{ranks.rank}", found)
