"""Rounds that two processes form, for the tests of this folder.

The round has four rows, dealt in turn: A and B of process 0 are the first and third, C and D of process 1 the second
and fourth. Rows are padded on the left, and their last two tokens are chosen, of C the last. Token k has k / 2 in the
column `half`; the score of a row is its index in the round, and its column `pair` is (score, 7).
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from rlcore.errors import RanksError
from rlcore.ranks import Ranks
from rlcore.ranks.rounds import Round
from rlcore.types import Trajectories

A, B, C, D = [1, 2, 3], [4, 5, 6, 7, 8], [9, 10], [11, 12, 13, 14]


def rows_of(rank: int) -> Trajectories:
    """Return the rows of a process."""
    rows, width = ((A, B), 5) if rank == 0 else ((C, D), 4)
    tokens = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    chosen = torch.arange(width).expand(2, width) >= torch.tensor([[width - (1 if row is C else 2)] for row in rows])
    scores = torch.arange(rank, 4.0, 2)
    pairs = torch.stack([scores, torch.full((2,), 7.0)], 1)
    columns = {"half": tokens / 2, "scores": scores, "pair": pairs.double()}
    return Trajectories(tokens, tokens > 0, chosen, torch.tensor([True, rank == 0]), columns)  # D is truncated


def real(batch: Trajectories) -> list[list[int]]:
    """Return the real tokens of each row."""
    return [row[mask].tolist() for row, mask in zip(batch.tokens, batch.mask, strict=True)]


def halves(batch: Trajectories) -> list[list[float]]:
    """Return the column `half` of the real tokens of each row."""
    return [row[mask].tolist() for row, mask in zip(batch["half"], batch.mask, strict=True)]


def exchanged() -> dict[str, Any]:
    """Fetch rows, and return what each process received, and in how many bytes; the rows are numbered A C B D."""
    ranks, sizes = Ranks("no"), list[int]()
    plain = torch.distributed.all_to_all_single

    def counted(received: Any, *arguments: Any) -> Any:
        sizes.append(received.nbytes)
        return plain(received, *arguments)

    torch.distributed.all_to_all_single = counted
    batch = Round.of(ranks, rows_of(ranks.rank))
    found = batch.fetch([torch.tensor([3, 0]), torch.tensor([1, 2, 2])])
    received = [found["pair"].tolist(), found["scores"].tolist(), found.ended.tolist()]
    return {"seen": ranks.gather([[real(found), halves(found), found.action_tokens, *received, *sizes]])}


def formed() -> dict[str, Any]:
    """Form a round, leave C out, and return what process 0 knows of it and fetches."""
    warnings.simplefilter("error", FutureWarning)  # of torch, about operations that it will not have for long
    ranks = Ranks("no")
    batch = Round.of(ranks, rows_of(ranks.rank))
    batch = batch.rows(batch["scores"] != 1.0)
    rows, shares = batch.own, [torch.tensor([2, 0]), torch.tensor([1])]
    fetched = batch.fetch(shares)
    doubled = batch.map(lambda part: part.with_columns(double=part["half"] * 4, first=part.tokens.amax(1)), size=1)
    chosen = doubled.rows(torch.tensor([0, 2])).fetch([torch.tensor([1, 0]), torch.tensor([1])])
    white = batch.whiten(rows["half"], min_std=1e-4)
    twice = Round.join([batch.rows(torch.tensor([1])), batch])
    learning = batch.learning(batch["scores"] > 0)
    parts = [part["scores"].tolist() for part in batch.minibatches(2, seed=0)]
    dealt = Round.dealt(ranks, batch.whole())
    return {
        "scores": batch["scores"].tolist(), "lengths": batch.lengths.tolist(), "actions": batch.num_actions.tolist(),
        "prompts": batch.prompt_lengths.tolist(), "ended": batch.ended.tolist(), "own": real(rows),
        "fetched": real(fetched), "of fetched": fetched["scores"].tolist(), "first": doubled["first"].tolist(),
        "double": [row[mask].tolist() for row, mask in zip(chosen["double"], chosen.mask, strict=True)],
        "sums": batch.sums(rows["half"]).tolist(), "mean": batch.mean(rows["half"]),
        "tokens": sorted(batch.chosen(rows["half"]).tolist()), "white": ranks.gather(white[rows.action_mask].tolist()),
        "joined": real(twice.whole()), "whole": real(batch.whole()), "learning": learning.num_actions.tolist(),
        "dealt": ranks.gather([real(dealt.own)]), "again": real(Round.of(ranks, twice.own).whole()), "parts": parts,
    }  # fmt: skip


def of_one_process() -> dict[str, Any]:
    """Form and put through a round of which process 1 has no row."""
    ranks = Ranks("no")
    own = rows_of(0) if ranks.rank == 0 else Trajectories.stack([], [])
    batch = Round.of(ranks, own).map(lambda part: part.with_columns(more=part["half"] + 1, last=part.tokens[:, -1]))
    found = batch.fetch([torch.tensor([0]), torch.tensor([1])])
    seen = [sorted(found.columns), real(found), found["last"].tolist(), batch.mean(batch.own["half"])]
    return {"seen": ranks.gather([seen])}


def with_other_columns() -> dict[str, Any]:
    """Form rounds in which process 1 has a column more, or one of another form, and return the errors."""
    ranks, errors = Ranks("no"), []
    wide = torch.zeros(2, 4)  # one number a token on process 1, where rows have 4 tokens, and four a row on process 0
    for columns in ({"more": wide} if ranks.rank else {}, {"wide": wide}):
        try:
            Round.of(ranks, rows_of(ranks.rank).with_columns(**columns))
            errors.append("")
        except RanksError as error:
            errors.append(str(error))
    return {"errors": ranks.gather([errors])}
