"""Where the reference's log-probs come from without a pass: the cache, or the rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from dpo_making import ROWS, answer, make, perturbed
from safetensors.torch import load_file, save_file

from rlcore.errors import ConfigError, DataError
from rlcore.testing.small import make_gpt2
from rlcore_dpo.reference import Reference


def table_of(folder: Path, model: Any = None, rows: Any = ROWS, **options: Any) -> torch.Tensor:
    trainer = make(folder, model or make_gpt2(), rows, **options)
    trainer.reference.precompute()
    table: torch.Tensor = trainer.reference.tables[0]
    return table


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of rows of the tables that are computed."""
    counts: list[int] = []
    table = Reference._table
    monkeypatch.setattr(
        Reference, "_table", lambda self, rows, score: counts.append(len(rows)) or table(self, rows, score)
    )
    return counts


def test_a_later_run_takes_the_table_of_an_earlier_one(tmp_path: Path, computed: list[int]) -> None:
    first = table_of(tmp_path)
    second = table_of(tmp_path, beta=0.7, loss="ipo", optimizer={"lr": 1e-3})
    assert torch.equal(first, second)
    assert computed == [10]
    table_of(tmp_path, cache_ref=False)
    assert computed == [10, 10]


def test_a_table_of_other_rows_weights_or_lengths_is_not_taken(tmp_path: Path, computed: list[int]) -> None:
    """TRL #7083 takes the log-probs of an earlier data set or model."""
    table_of(tmp_path)
    other = [{**ROWS[0], "chosen": "zz"}, *ROWS[1:]]
    for found in (
        table_of(tmp_path, perturbed(make_gpt2())), table_of(tmp_path, rows=other),
        table_of(tmp_path, sections={"data": {"max_sample_tokens": 4}}),
    ):  # fmt: skip
        assert found.isfinite().all()
    assert len(computed) == 4


@pytest.mark.parametrize("damage", ["numbers", "file"])
def test_a_table_whose_numbers_the_model_does_not_give_is_computed_again(
    tmp_path: Path, computed: list[int], damage: str
) -> None:
    """The weights are those of the digest, and the model's code may be another one."""
    first = table_of(tmp_path)
    (file,) = (tmp_path / ".ref_logprobs").iterdir()
    if damage == "file":
        file.write_bytes(b"no table")
    else:
        save_file({"table": load_file(file)["table"] + 1e-3}, file)
    assert torch.equal(table_of(tmp_path), first)
    assert torch.equal(load_file(file)["table"], first)
    assert computed == [10, 10]


def test_log_probs_of_whole_answers_are_refused_for_answers_that_are_cut(tmp_path: Path) -> None:
    given = [{**row, "ref_chosen_logps": -1.0, "ref_rejected_logps": -2.0} for row in ROWS]
    long = {**given[0], "chosen": "c" * 70}  # the model's context is 64 tokens
    with pytest.raises(DataError, match=r"1 of 11 rows have log-probs .*the model's context cuts off"):
        make(tmp_path, make_gpt2(), [*given, long])


def test_log_probs_of_the_rows_replace_the_reference(tmp_path: Path, computed: list[int]) -> None:
    other = perturbed(make_gpt2())
    plain = make(tmp_path, make_gpt2()).rows
    rows = [
        {
            **row, "ref_chosen_logps": answer(other, pair.chosen).sum().item(),
            "ref_rejected_logps": answer(other, pair.rejected).sum().item(),
        }
        for row, pair in zip(ROWS, plain, strict=True)
    ]  # fmt: skip
    other.save_pretrained(tmp_path / "other")
    named = next(make(tmp_path / "a", make_gpt2(), ref_model=str(tmp_path / "other")).steps())
    for precompute in (None, False):
        given = next(make(tmp_path / "b", make_gpt2(), rows, precompute_ref=precompute).steps())
        assert given["loss/total"] == pytest.approx(named["loss/total"], abs=1e-5)
    assert computed == [10]
    with pytest.raises(ConfigError, match=r"trainer.ref_model = 'x': the rows have log-probs of a reference"):
        make(tmp_path / "c", make_gpt2(), rows, ref_model="x")
    with pytest.raises(DataError, match="9 of 10 rows have log-probs of a reference"):
        make(tmp_path / "d", make_gpt2(), [ROWS[0], *rows[1:]])
