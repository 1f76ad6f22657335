"""Turn judgements into rows of preferences, as the trainers `reward` and `dpo` read them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rlcore_human.journal import read_judgements
from rlcore_human.judgement import Item, Judgement, mean_scores


def preferences(folder: str | os.PathLike[str], *, ties: bool = False) -> list[dict[str, Any]]:
    """Return the pairs of completions of one prompt of which people prefer one.

    The scores of one completion are averaged over people. Rankings are compared within the completions that were ranked
    together, scores among all completions of a prompt with the same scale.

    Args:
        folder: the folder of a run, or of `judgements.jsonl`.
        ties: also return pairs with equal scores, with `label: tie`.

    Returns:
        Rows with `prompt`, `chosen` and `rejected`: texts, or messages where the prompts were conversations.

    Raises:
        DataError: a line of the file is no judgement.
    """
    return list(preference_rows(read_judgements(Path(folder)), ties=ties))


def preference_rows(judgements: Iterable[Judgement], *, ties: bool) -> Iterator[dict[str, Any]]:
    """Yield the rows of judgements, in the order of the first judgement of each prompt."""
    by_item: dict[str, list[Judgement]] = {}
    for judgement in judgements:
        by_item.setdefault(judgement.item.key, []).append(judgement)
    compared: dict[Any, dict[str, tuple[Item, float]]] = {}
    for same in by_item.values():
        item = same[0].item
        group = (item.prompt, item.scale) if item.scale else item.key
        for output, score in zip(item.outputs, mean_scores(same), strict=True):
            if score is not None:
                compared.setdefault(group, {})[output] = (item, score)
    for group_of in compared.values():
        for (one, (item, score)), (other, (_, than)) in itertools.combinations(group_of.items(), 2):
            better, worse = (one, other) if score >= than else (other, one)
            if score != than or ties:
                yield {**_row(item, better, worse), **({"label": "tie"} if score == than else {})}


def _row(item: Item, chosen: str, rejected: str) -> dict[str, Any]:
    if item.messages is None:
        return {"prompt": item.prompt, "chosen": chosen, "rejected": rejected}
    turns, begun = list(item.messages), ""
    if turns and turns[-1].get("role") == "assistant":
        begun = turns.pop()["content"]
    answers = ([{"role": "assistant", "content": begun + text}] for text in (chosen, rejected))
    return {"prompt": turns, **dict(zip(("chosen", "rejected"), answers, strict=True))}
