"""What people are asked, and what they answer.

Also in this file: the file of all judgements of a run, to which each is appended and synced before the page hears of
it; how far people agree in their judgements; the command `rlcore judgements`; light: the modules that it runs are
imported on use.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs

from rlcore.errors import DataError
from rlcore.safe_text import write

if TYPE_CHECKING:
    from rlcore.types import Row

SCORE, RANK = "score", "rank"
TOLERANCE = 1e-6
"""Part of an interval by which a score may differ from the scale, because of rounding."""


def _texts(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(values)


def _floats(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(map(float, values))


@attrs.frozen
class Item:
    """One question: a completion to score, or several completions of a prompt to rank.

    Attributes:
        mode: `score` or `rank`.
        prompt: the prompt as the policy received it.
        outputs: the completions: one to score, or N different ones to rank.
        messages: the conversation before the answer; None for a plain prompt. If its last message is the assistant's,
            the completions continue that message.
        scale: lowest score, highest score and their interval; empty for a ranking.
        step: the training step that asked first.
    """

    mode: str
    prompt: str
    outputs: tuple[str, ...] = attrs.field(converter=_texts)
    messages: list[dict[str, Any]] | None = attrs.field(default=None, eq=False)
    scale: tuple[float, ...] = attrs.field(default=(), converter=_floats)
    step: int = attrs.field(default=0, eq=False)

    @property
    def key(self) -> str:
        """Return a fingerprint of the question; equal questions are asked once."""
        text = json.dumps([self.mode, self.prompt, self.outputs, self.scale])
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    def scores(self, value: object) -> tuple[float | None, ...]:
        """Return the scores of the N completions.

        Args:
            value: a score, or N ranks from 1, the best, where equal ranks are ties; None: the person cannot judge.

        Raises:
            DataError: the value is none of these.
        """
        if value is None:
            return (None,) * len(self.outputs)
        if self.mode == SCORE:
            low, high, _ = self.scale
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
                raise DataError(f"the score {value!r} is not a number from {low:g} to {high:g}")
            return (float(value),)
        return rank_scores(value, len(self.outputs))

    def check(self, value: object) -> None:
        """Raise DataError if the page does not offer a value, such as a score between two of the scale."""
        (first, *_) = self.scores(value)
        if self.mode == SCORE and first is not None and (interval := self.scale[2]):
            low, high, _ = self.scale
            places = (first - low) / interval
            if abs(places - round(places)) > TOLERANCE:
                raise DataError(f"the score {value!r} is none of {low:g}, {low + interval:g}, and so on to {high:g}")


def rank_scores(ranks: Any, count: int) -> tuple[float, ...]:
    """Return the scores of ranks: (n - r) / (n - 1) with r the mean rank, which ties share.

    Args:
        ranks: `count` whole numbers from 1, the best, to `count`.
        count: n, the number of completions, at least 2.

    Raises:
        DataError: `ranks` are something else.
    """
    is_list = isinstance(ranks, Sequence) and not isinstance(ranks, str) and len(ranks) == count
    if not is_list or not all(type(rank) is int and 1 <= rank <= count for rank in ranks):
        raise DataError(f"the ranks {ranks!r} are not {count} whole numbers from 1 to {count}")
    mean = [sum(other < rank for other in ranks) + (sum(other == rank for other in ranks) + 1) / 2 for rank in ranks]
    return tuple((count - each) / (count - 1) for each in mean)


@attrs.frozen
class Judgement:
    """One person's answer.

    Attributes:
        id: made by the page, so that one that is sent twice is kept once.
        item: the question.
        value: a score, N ranks, or None if the person cannot judge.
        who: the person's name.
        when: date and time in ISO 8601, UTC.
        seconds: how long the page showed the question.
    """

    id: str
    item: Item
    value: Any
    who: str
    when: str
    seconds: float = 0.0

    @property
    def scores(self) -> tuple[float | None, ...]:
        """Return the scores of the item's completions."""
        return self.item.scores(self.value)

    def to_row(self) -> dict[str, object]:
        """Return the line of judgements.jsonl."""
        item = {name: value for name, value in attrs.asdict(self.item).items() if name != "step"}
        own = {"value": self.value, "scores": list(self.scores), "seconds": self.seconds}
        return {"id": self.id, "step": self.item.step, "who": self.who, "when": self.when, **own, **item}

    @classmethod
    def from_row(cls, row: Row) -> Judgement:
        """Read a line of judgements.jsonl.

        Raises:
            DataError: the line has other keys or values.
        """
        try:
            item = Item(row["mode"], row["prompt"], row["outputs"], row["messages"], row["scale"], row["step"])
            found = cls(row["id"], item, row["value"], row["who"], row["when"], row["seconds"])
            _ = found.scores
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"is no judgement: {type(error).__name__}: {error}") from error
        return found


def mean_scores(judgements: Sequence[Judgement]) -> tuple[float | None, ...]:
    """Return the mean score of each completion of one item; None where nobody could judge."""
    columns = zip(*(judgement.scores for judgement in judgements), strict=True)
    return tuple(_mean([score for score in column if score is not None]) for column in columns)


def _mean(scores: Sequence[float]) -> float | None:
    return math.fsum(scores) / len(scores) if scores else None


NAME = "judgements.jsonl"
TAKES_BACK = "takes_back"
"""Key of a line by which a person takes back an earlier judgement, whose id it holds."""


def read_judgements(folder: Path) -> list[Judgement]:
    """Return the judgements in a folder, in their order.

    An incomplete last line is ignored, and so are a judgement that was written again because its first sync failed, and
    one that was taken back.

    Raises:
        DataError: a line is no judgement.
    """
    path = folder / NAME
    if not path.exists():
        return []
    *lines, _ = path.read_bytes().split(b"\n")  # whatever follows the last line break is incomplete
    judgements: dict[str, Judgement] = {}
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if isinstance(row, dict) and TAKES_BACK in row:
                judgements.pop(row[TAKES_BACK], None)
                continue
            judgement = Judgement.from_row(row)
        except ValueError as error:
            raise DataError(f"{path}:{number}: {error}; repair or remove the line") from error
        judgements.setdefault(judgement.id, judgement)
    return list(judgements.values())


def append_judgements(folder: Path, judgements: Sequence[Judgement]) -> None:
    """Append judgements, and return when they are on the disk."""
    append_rows(folder, [each.to_row() for each in judgements])


def append_rows(folder: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Append lines, and return when they are on the disk."""
    path = folder / NAME
    is_new = not path.exists()
    with path.open("ab+") as file:
        end = file.tell()  # opened at its end
        file.seek(max(0, end - 1))
        if file.read(1) not in {b"", b"\n"}:  # the process died while it wrote a line
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
        file.write(b"".join(json.dumps(row, default=str).encode() + b"\n" for row in rows))
        file.flush()
        os.fsync(file.fileno())
    if is_new:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


LEVELS: dict[str, Literal["interval", "ordinal"]] = {SCORE: "interval", RANK: "ordinal"}
"""The level of measurement: distances of scores count, of ranks only their order."""
REPORTED = "report/judgements.txt"
"""File in a run's folder that `rlcore-report` shows."""


@attrs.frozen
class Agreement:
    """How far people agree.

    Attributes:
        mode: `score` or `rank`.
        alpha: Krippendorff's alpha: 1 if all agree, 0 if they agree as by chance, below 0 if they disagree
            systematically; nan if all judgements are the same, which leaves nothing to compare.
        completions: number of completions that two people or more judged.
        people: number of people who judged them.
    """

    mode: str
    alpha: float
    completions: int
    people: int


def measure_agreement(judgements: Sequence[Judgement]) -> list[Agreement]:
    """Return the agreement of all scores and of all rankings, each if two people have judged the same completion.

    Krippendorff's alpha (Hayes & Krippendorff 2007, doi:10.1080/19312450709336664), by the library `krippendorff`:
    scores at the interval level, each divided by its scale; ranks within their question at the ordinal level.
    """
    found = []
    for mode, level in LEVELS.items():
        by_completion: dict[tuple[str, int], dict[str, float]] = {}
        for each in judgements:
            if each.item.mode == mode:
                for i, score in enumerate(each.scores):
                    if score is not None:
                        by_completion.setdefault((each.item.key, i), {})[each.who] = _on_one_scale(each, score)
        shared = [scores for scores in by_completion.values() if len(scores) > 1]
        if shared:
            people = sorted(set().union(*shared))
            rows = [[scores.get(who, math.nan) for scores in shared] for who in people]
            found.append(Agreement(mode, _alpha(rows, level), len(shared), len(people)))
    return found


def in_words(judgements: Sequence[Judgement]) -> list[str]:
    """Return how many judgements people made, and sentences on how far they agree."""
    people = Counter(judgement.who for judgement in judgements)
    items = len({judgement.item.key for judgement in judgements})
    by = ", ".join(f"{who} {count}" for who, count in people.most_common())
    lines = [f"{len(judgements)} judgements of {items} questions" + (f": {by}" if by else "")]
    for each in measure_agreement(judgements):
        alpha = "undefined, as all judgements are the same" if math.isnan(each.alpha) else f"{each.alpha:.2f}"
        lines.append(
            f"{each.people} people judged {each.completions} completions more than once ({each.mode}); Krippendorff's "
            f"alpha, 1 if they agree and 0 as by chance: {alpha}"
        )
    return lines


def write_agreement(folder: Path) -> None:
    """Write `in_words` for the report of a run in which people have judged something.

    Raises:
        OSError: there is no room for it.
        DataError: the judgements are damaged.
    """
    if judgements := read_judgements(folder):
        file = folder / REPORTED
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(f"{line}\n" for line in in_words(judgements)), encoding="utf-8")


def _on_one_scale(judgement: Judgement, score: float) -> float:
    """Return a score in [0, 1], so that questions with other scales can be compared."""
    if judgement.item.mode == RANK:
        return score
    low, high, _ = judgement.item.scale
    return (score - low) / (high - low)


def _alpha(rows: list[list[float]], level: Literal["interval", "ordinal"]) -> float:
    import krippendorff  # imports numpy
    import numpy as np

    values = np.array(rows)
    if np.unique(values[~np.isnan(values)]).size < 2:
        return math.nan
    return float(krippendorff.alpha(reliability_data=values, level_of_measurement=level))


def command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Add the arguments of `rlcore judgements` to its parser, and return the function that runs it."""
    parser.description = (
        "Show how many judgements people made in a run with the reward `human`, and how far they agree. With an "
        "option, write them as rows of preferences, which the trainers `reward` and `dpo` read, or exchange them with "
        "Argilla."
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run, or of judgements.jsonl")
    parser.add_argument("--preferences", type=Path, metavar="FILE.jsonl", help="write pairs of completions")
    parser.add_argument("--ties", action="store_true", help="also write pairs with equal scores, with label: tie")
    parser.add_argument("--to-argilla", type=Path, metavar="FILE.json", help="write records, for records.from_json")
    parser.add_argument(
        "--from-argilla", type=Path, metavar="FILE.json", help="add the responses in records that records.to_json wrote"
    )
    parser.add_argument("--low", type=float, default=1.0, help="lowest score of imported records (default: 1)")
    parser.add_argument("--high", type=float, default=5.0, help="highest score of imported records (default: 5)")
    parser.add_argument("--interval", type=float, default=1.0, help="interval of their scores (default: 1)")
    return _run


def _run(arguments: argparse.Namespace) -> int:
    import json

    from rlcore.errors import DataError
    from rlcore_rewards.human.argilla_records import preference_rows, read_records, to_records

    if not arguments.run.is_dir():
        raise DataError(f"{arguments.run}: is no folder; name the folder of a run with the reward 'human'")
    judgements = read_judgements(arguments.run)
    if arguments.from_argilla is not None:
        scale = (arguments.low, arguments.high, arguments.interval)
        known = {judgement.id for judgement in judgements}
        added = [each for each in read_records(arguments.from_argilla, scale=scale) if each.id not in known]
        if added:
            append_judgements(arguments.run, added)
        judgements += added
        write(f"added {len(added)} judgements to {arguments.run / NAME}")
    if arguments.preferences is not None:
        rows = list(preference_rows(judgements, ties=arguments.ties))
        text = "".join(f"{json.dumps(row)}\n" for row in rows)
        arguments.preferences.write_text(text, encoding="utf-8")
        write(f"wrote {len(rows)} preferences to {arguments.preferences}")
    if arguments.to_argilla is not None:
        records = to_records(judgements)
        arguments.to_argilla.write_text(json.dumps(records, indent=1), encoding="utf-8")
        write(f"wrote {len(records)} records to {arguments.to_argilla}")
    for line in in_words(judgements):
        write(line)
    return 0
