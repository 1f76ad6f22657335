"""Rows of other packages' pipelines in previews and in the reports of runs."""

from __future__ import annotations

import attrs

from rlcore.settings import DataConfig
from rlcore.types import Sample
from rlcore_testing.small import make_tokenizer
from rlcore_tools.shown_rows import plain_text, show_rows


@attrs.frozen
class Ranked:
    """A row of several answers to a prompt."""

    outputs: tuple[Sample, ...]
    scores: tuple[float, ...]


def test_every_sequence_of_a_row_of_another_package_is_shown() -> None:
    tokenizer = make_tokenizer()
    a, b, c = (tokenizer.convert_tokens_to_ids(letter) for letter in "abc")
    short, long = Sample((a, b), (False, True)), Sample((a, c, c), (False, True, True))
    rows = [Ranked((short, long), (0.5, 1.5)), Ranked((short,), (2.0,)), (long, short)]
    text = plain_text([show_rows("samples", rows, None, tokenizer, DataConfig())])
    _, first, second, third = text.split("\nsamples[")
    assert "outputs[0], 1 of 2 tokens trained\na\n⟦b⟧\noutputs[1], 2 of 3 tokens trained\na\n⟦c·c⟧" in first
    assert "scores: (0.5, 1.5)" in first
    assert "outputs" not in second
    assert "1 of 2 tokens trained\na\n⟦b⟧\nscores: (2.0,)" in second
    assert "[0], 2 of 3 tokens trained\na\n⟦c·c⟧\n[1], 1 of 2 tokens trained\na\n⟦b⟧" in third
