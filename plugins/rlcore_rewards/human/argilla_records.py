"""Judgements as records of Argilla 2, in the file format of `Dataset.records.to_json` and `from_json`.

Also in this file: turn judgements into rows of preferences, as the trainers `reward` and `dpo` read them.
"""

from __future__ import annotations

import itertools
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.errors import DataError
from rlcore_rewards.human.judgement import RANK, SCORE, Item, Judgement, mean_scores, read_judgements

if TYPE_CHECKING:
    from rlcore.types import Row

QUESTION = {SCORE: "score", RANK: "ranking"}
"""The questions of an Argilla dataset: a RatingQuestion `score`, or a RankingQuestion `ranking`."""
SCALE = ("low", "high", "interval")
_NAMES = uuid.uuid5(uuid.NAMESPACE_URL, "rlcore-rewards")


def to_records(judgements: Iterable[Judgement]) -> list[dict[str, Any]]:
    """Return one record for each item; people become users, whose ids are derived from their names.

    Judgements of people who could not judge have no counterpart and are left out.
    """
    by_item: dict[str, list[Judgement]] = {}
    for judgement in judgements:
        if judgement.value is not None:
            by_item.setdefault(judgement.item.key, []).append(judgement)
    return [_record(key, same) for key, same in by_item.items()]


def _record(key: str, judgements: Sequence[Judgement]) -> dict[str, object]:
    item = judgements[0].item
    fields: dict[str, object] = {"prompt": item.prompt, **dict(zip(_fields(item), item.outputs, strict=True))}
    if item.messages is not None:
        fields["conversation"] = item.messages
    responses = [
        {"value": _value(each), "user_id": str(uuid.uuid5(_NAMES, each.who)), "status": "submitted"}  # else a draft
        for each in judgements
    ]
    metadata = {
        "mode": item.mode, "step": item.step, "who": [each.who for each in judgements],
        "when": [each.when for each in judgements], "judgement_ids": [each.id for each in judgements],
        "seconds": [each.seconds for each in judgements],
        **dict(zip(SCALE, item.scale, strict=False)),
    }  # fmt: skip
    return {
        "id": key, "fields": fields, "metadata": metadata, "suggestions": {},
        "responses": {QUESTION[item.mode]: responses}, "vectors": {}, "status": "completed", "_server_id": None,
    }  # fmt: skip


def _fields(item: Item) -> list[str]:
    return ["completion"] if item.mode == SCORE else [f"completion_{i}" for i in range(1, len(item.outputs) + 1)]


def _value(judgement: Judgement) -> object:
    if judgement.item.mode == SCORE:
        whole = int(judgement.value)
        return whole if whole == judgement.value else judgement.value
    ranked = zip(_fields(judgement.item), judgement.value, strict=True)
    return [{"value": name, "rank": rank} for name, rank in sorted(ranked, key=lambda each: each[1])]


def read_records(path: Path, *, scale: tuple[float, float, float]) -> list[Judgement]:
    """Return the judgements in a file of records.

    Args:
        path: a JSON list of records with the fields `prompt` and `completion`, or `completion_1` to `completion_N`,
            and responses to `score` or `ranking`.
        scale: lowest score, highest score and interval of records that do not state them.

    Raises:
        DataError: the file is no list of such records.
    """
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(records, list):
        raise DataError(
            f"{path}: is a {type(records).__name__}; expected the list that records.to_json of Argilla writes"
        )
    judgements = []
    for index, record in enumerate(records):
        try:
            judgements += _judgements(record, scale)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{path}: record {index}: {type(error).__name__}: {error}") from error
    return judgements


def _judgements(record: Row, scale: tuple[float, float, float]) -> list[Judgement]:
    fields, metadata = record["fields"], record.get("metadata") or {}
    names = sorted((name for name in fields if name.startswith("completion_")), key=lambda name: int(name[11:]))
    mode = RANK if names else SCORE
    outputs = [fields[name] for name in names or ["completion"]]
    stated = [metadata.get(name, default) for name, default in zip(SCALE, scale, strict=True)]
    item = Item(
        mode, fields["prompt"], outputs, fields.get("conversation"), () if mode == RANK else stated,
        metadata.get("step", 0),
    )  # fmt: skip
    people = {str(uuid.uuid5(_NAMES, who)): i for i, who in enumerate(metadata.get("who", []))}
    found = []
    for response in (record.get("responses") or {}).get(QUESTION[mode], []):
        user, place = response["user_id"], people.get(response["user_id"])
        value = response["value"] if mode == SCORE else _ranks(response["value"], names)
        judgement = Judgement(
            str(uuid.uuid5(_NAMES, f"{item.key} {user}")) if place is None else metadata["judgement_ids"][place],
            item, value, user if place is None else metadata["who"][place],
            str(record.get("inserted_at") or "") if place is None else metadata["when"][place],
            0.0 if place is None else metadata["seconds"][place],
        )  # fmt: skip
        _ = judgement.scores
        found.append(judgement)
    return found


def _ranks(value: Sequence[Any], names: Sequence[str]) -> list[int]:
    """Return the rank of each name from Argilla's list, whose entries are names in order, or names with ranks."""
    ranks = {
        each if isinstance(each, str) else each["value"]: i if isinstance(each, str) else each.get("rank") or i
        for i, each in enumerate(value, 1)
    }
    return [ranks[name] for name in names]


def preferences(folder: str | os.PathLike[str], *, ties: bool = False) -> list[dict[str, object]]:
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


def preference_rows(judgements: Iterable[Judgement], *, ties: bool) -> Iterator[dict[str, object]]:
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


def _row(item: Item, chosen: str, rejected: str) -> dict[str, object]:
    if item.messages is None:
        return {"prompt": item.prompt, "chosen": chosen, "rejected": rejected}
    turns, begun = list(item.messages), ""
    if turns and turns[-1].get("role") == "assistant":
        begun = turns.pop()["content"]
    answers = ([{"role": "assistant", "content": begun + text}] for text in (chosen, rejected))
    return {"prompt": turns, **dict(zip(("chosen", "rejected"), answers, strict=True))}
