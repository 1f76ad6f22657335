"""The sequences of rows of every form."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from rlcore.checkpoints.fingerprints import fingerprint_rows
from rlcore.types import Sample, sequences_of
from rlcore_reward.process_trainer import SteppedSample
from rlcore_transformers.preferences.preferences import LabelledSample, Pair

A, B, C = (Sample((i, i + 1), (False, True)) for i in range(3))


@attrs.frozen
class Ranked:
    outputs: tuple[Sample, ...] | list[Sample]
    scores: tuple[float, ...]
    prompt: Sample | None = None


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (A, [A]),
        (Pair(A, B, margin=1.0, ref_logprobs=(-1.0, -2.0)), [A, B]),
        (LabelledSample(A, label=True), [A]),
        (SteppedSample(A, labels=(-100, 1)), [A]),
        (Ranked((A, B, C), (1.0, 2.0, 3.0)), [A, B, C]),
        (Ranked([A, B], (1.0, 2.0), prompt=C), [A, B, C]),
        (Ranked((), ()), []),
        ((A, B), [A, B]),
        ([B, A, C], [B, A, C]),
        ((), []),
    ],
)
def test_the_sequences_of_a_row_are_its_samples_and_those_in_its_tuples_and_lists(
    row: Any, expected: list[Sample]
) -> None:
    assert sequences_of(row) == expected


def test_every_sequence_of_a_row_is_part_of_its_fingerprint() -> None:
    rows = [
        Ranked((A, B), (1.0, 2.0)), Ranked((A, C), (1.0, 2.0)), Ranked((B, A), (1.0, 2.0)), Ranked((A,), (1.0, 2.0)),
        Ranked((A, B), (1.0, 3.0)), (A, B), (A, C),
    ]  # fmt: skip
    assert len({fingerprint_rows([row]) for row in rows}) == len(rows)
    assert fingerprint_rows([Ranked((A, B), (1.0, 2.0))]) == fingerprint_rows(rows[:1])
    assert fingerprint_rows([(A, B), (C,)]) != fingerprint_rows([(A,), (B, C)])
