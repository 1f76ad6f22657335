from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from rlcore.checkpoints.state import load_state, save_state
from rlcore.ranks import Ranks
from rlcore.ranks.rounds import Round
from rlcore.types import Trajectories
from rlcore_rft.trainer import History, distinct, sequence_keys

Row = tuple[int, Sequence[int], float]


def made(num_rounds: int) -> History:
    return History(num_rounds, deal)


def deal(rows: Trajectories) -> Round:
    return Round.dealt(Ranks(None), rows)


def keyed(rows: Trajectories) -> Round:
    return deal(rows.with_columns(keys=sequence_keys(rows)))


def rounds(rows: Sequence[Row], *, left: int = 0) -> Trajectories:
    """Return a batch of (prompt, outputs, score) rows; prompt p is the single token p, after `left` padding tokens."""
    batch = Trajectories.stack(
        [[9] * left + [prompt, *output] for prompt, output, _ in rows],
        [[False] * (left + 1) + [True] * len(output) for _, output, _ in rows],
    )
    batch.mask[:, :left] = False
    scores = torch.tensor([score for *_, score in rows])
    return batch.with_columns(scores=scores, prompts=torch.tensor([p for p, *_ in rows]), logprobs=batch.tokens * 0.5)


def held(history: History) -> list[tuple[int, list[int], float, int]]:
    batch = history.responses
    columns = (batch[name].tolist() for name in ("prompts", "scores", "counts"))
    return [(p, tokens, s, n) for tokens, p, s, n in zip(batch.own.action_tokens, *columns, strict=True)]


def test_a_repeated_response_is_stored_once_with_its_count() -> None:
    history = made(1)
    history.add(deal(rounds([(0, [5, 6], 1.0), (1, [5, 6], 1.0), (0, [5, 6], 1.0), (0, [5], 1.0), (0, [5, 6], 2.0)])))
    assert held(history) == [(0, [5, 6], 1.0, 2), (1, [5, 6], 1.0, 1), (0, [5], 1.0, 1), (0, [5, 6], 2.0, 1)]
    assert set(history.responses.own.columns) == {"prompts", "scores", "keys", "counts"}


def test_prompts_of_one_text_keep_responses_of_their_own() -> None:
    history = made(1)
    batch = rounds([(0, [5], 1.0), (0, [5], 1.0), (0, [5], 1.0)])
    history.add(deal(batch.with_columns(prompts=torch.tensor([0, 4, 0]))))
    assert held(history) == [(0, [5], 1.0, 2), (4, [5], 1.0, 1)]


def test_responses_that_differ_in_padding_only_are_the_same() -> None:
    rows = [(0, [5, 6], 1.0), (0, [5], 1.0)]
    both = Trajectories.concat([rounds(rows), rounds(rows, left=3)])
    assert len(distinct(keyed(both))) == 2
    history = made(1)
    history.add(deal(both))
    assert [count for *_, count in held(history)] == [2, 2]


def test_responses_that_differ_in_their_action_mask_are_different() -> None:
    batch = rounds([(0, [5, 6], 1.0), (0, [5, 6], 1.0)])
    batch.action_mask[1, 1] = False  # here token 5 belongs to the prompt
    assert len(distinct(keyed(batch))) == 2


def test_a_response_is_trained_on_once_even_if_its_scores_differ() -> None:
    batch = rounds([(0, [5, 6], 1.0), (0, [7], 3.0), (0, [5, 6], 2.0)])
    assert distinct(keyed(batch)).own.action_tokens == [[5, 6], [7]]
    assert len(distinct(keyed(batch).rows(torch.zeros(3, dtype=torch.bool)))) == 0


def test_the_history_holds_the_newest_rounds_only() -> None:
    history = made(2)
    for number in (1, 2, 3):
        history.add(deal(rounds([(0, [number], float(number))])))
    assert held(history) == [(0, [2], 2.0, 1), (0, [3], 3.0, 1)]


def test_the_history_of_responses_is_restored_from_disk(tmp_path: Path) -> None:
    history, again, shorter = made(2), made(2), made(1)
    for number in (1, 2):
        history.add(deal(rounds([(0, [number, 8], 0.1 * number), (1, [number], 1.0), (1, [number], 1.0)])))
    save_state(tmp_path / "state.safetensors", history.state_dict())
    for each in (again, shorter):
        each.load_state_dict(load_state(tmp_path / "state.safetensors"))
    assert held(again) == held(history)
    assert held(shorter) == held(history)[2:]
