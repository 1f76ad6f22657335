"""Rows that two processes have, exchange and gather, for the tests of this folder.

The round has four rows, dealt in turn: A and B of process 0 are the first and third, C and D of process 1 the second
and fourth. Rows are padded on the left, and their last two tokens are chosen, of C the last. Token k has k / 2 in the
column `half`; the score of a row is its index in the round.
"""

from __future__ import annotations

import types
import warnings
from typing import Any

import torch

from rlcore.errors import RanksError
from rlcore.ranks import Ranks
from rlcore.types import Trajectories
from rlcore_transformers.rounds import (
    ScatteredRound,
    gather_statistics,
    join_rounds,
    token_mean,
    token_sums,
    whiten,
    with_token_columns,
)
from rlcore_transformers.rounds.scattered import exchange, on_the_right

A, B, C, D = [1, 2, 3], [4, 5, 6, 7, 8], [9, 10], [11, 12, 13, 14]


def rows_of(rank: int) -> Trajectories:
    """Return the rows of a process."""
    rows, width = ((A, B), 5) if rank == 0 else ((C, D), 4)
    tokens = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    chosen = torch.arange(width).expand(2, width) >= torch.tensor([[width - (1 if row is C else 2)] for row in rows])
    ended = torch.tensor([True, rank == 0])  # D is truncated
    return Trajectories(tokens, tokens > 0, chosen, ended, {"half": tokens / 2})


def real(batch: Trajectories) -> list[list[int]]:
    """Return the real tokens of each row."""
    return [row[mask].tolist() for row, mask in zip(batch.tokens, batch.mask, strict=True)]


def exchanged() -> dict[str, Any]:
    """Exchange rows, and return what each process received, and in how many bytes; the row numbers are A C B D."""
    ranks, sizes = Ranks("no"), list[int]()
    plain = torch.distributed.all_to_all_single

    def counted(received: Any, *arguments: Any) -> Any:
        sizes.append(received.nbytes)
        return plain(received, *arguments)

    torch.distributed.all_to_all_single = counted
    found = exchange(
        ranks, on_the_right(rows_of(ranks.rank)), [torch.tensor([3, 0]), torch.tensor([1, 2, 2])],
        owners=torch.tensor([0, 1, 0, 1]), places=torch.tensor([0, 0, 1, 1]), lengths=torch.tensor([3, 2, 5, 4]),
    )  # fmt: skip
    halves = [row[mask].tolist() for row, mask in zip(found["half"], found.mask, strict=True)]
    return {"seen": ranks.gather([[real(found), halves, found.action_tokens, *sizes]])}


def gathered_round(
    ranks: Ranks, *, scores: list[float | None], **columns: torch.Tensor
) -> tuple[ScatteredRound, dict[str, float]]:
    """Gather the round of four rows with these scores, and with further columns of the rows of this process."""
    own = scores[ranks.rank :: 2]
    sampling = types.SimpleNamespace(check_round=lambda: None)
    run: Any = types.SimpleNamespace(ranks=ranks, sampling=sampling)
    numbers = torch.tensor([score or 0.0 for score in own])
    scored: Any = types.SimpleNamespace(totals=own, scores=numbers, by_name={"r": own}, numbers={})
    batch, metrics = gather_statistics(run, rows_of(ranks.rank).with_columns(**columns), scored)
    return batch, dict(metrics)


def gathered() -> dict[str, Any]:
    """Gather a round in which C has no score, and return what process 0 knows of it and fetches."""
    warnings.simplefilter("error", FutureWarning)  # of torch, about operations that it will not have for long
    ranks = Ranks("no")
    batch, metrics = gathered_round(ranks, scores=[0.0, None, 2.0, 3.0])
    shares = [torch.tensor([2, 0]), torch.tensor([1])]
    fetched = batch.dealt(lambda rank: shares[rank], ranks.rank)
    rows = batch.own()
    with_more = with_token_columns(batch, double=rows["half"] * 4)
    chosen = with_more.rows(torch.tensor([0, 2])).dealt(lambda rank: torch.tensor([1, 0]), ranks.rank)
    white = whiten(batch, rows["half"], min_std=1e-4)
    twice = join_rounds([batch.rows(torch.tensor([1])), batch])
    both = twice.dealt(lambda rank: torch.arange(4), ranks.rank)
    return {
        "scores": batch["scores"].tolist(), "lengths": batch.lengths.tolist(), "actions": batch.num_actions.tolist(),
        "prompts": batch.prompt_lengths.tolist(), "ended": batch.ended.tolist(), "own": real(rows),
        "width": batch.tokens.shape[1], "fetched": real(fetched), "of fetched": fetched["scores"].tolist(),
        "double": [row[mask].tolist() for row, mask in zip(chosen["double"], chosen.mask, strict=True)],
        "length_mean": metrics["response/length_mean"], "unscored": metrics["reward/unscored"],
        "sums": token_sums(batch, rows["half"]).tolist(), "mean": token_mean(batch, rows["half"]),
        "white": ranks.gather(white[rows.action_mask].tolist()), "joined": real(both),
    }  # fmt: skip


def gathered_with_other_columns() -> dict[str, Any]:
    """Gather rounds in which process 1 has a column more, or one of another form, and return what processes say."""
    ranks, said = Ranks("no"), []
    wide = torch.zeros(2, 4)  # one number a token on process 1, where rows have 4 tokens, and four a row on process 0
    for columns in ({"more": wide} if ranks.rank else {}, {"wide": wide}):
        try:
            gathered_round(ranks, scores=[0.0, 1.0, 2.0, 3.0], **columns)
            said.append("")
        except RanksError as error:
            said.append(str(error))
    return {"said": ranks.gather([said])}
