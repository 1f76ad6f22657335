"""Where the reference's log-probs come from without a pass: the cache, or the rows."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dpo_making import ROWS, answer, make, perturbed
from safetensors.torch import load_file, save_file

from rlcore.errors import ConfigError, DataError
from rlcore.types import Sample, sequences_of
from rlcore_dpo.reference import Reference, ReferenceCache, _seal, digest
from rlcore_testing.small import make_gpt2, make_llama
from rlcore_transformers.preferences.preferences import Pair

REJECTED = "a file of reference log-probs is not used; they are computed again"


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


@pytest.mark.parametrize("damage", ["code", "file", "unsealed", "tail", "swapped", "shifted", "other rows", "bfloat16"])
def test_a_damaged_table_is_computed_again_with_one_warning(
    tmp_path: Path, computed: list[int], capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    """Rows of the first pass are computed again each time; all damage but the first spares them."""
    first = table_of(tmp_path)
    (file,) = (tmp_path / ".ref_logprobs").iterdir()
    parts = load_file(file)
    last, before = sorted(range(10), key=lambda i: -max(len(ROWS[i]["chosen"]), len(ROWS[i]["rejected"])))[-2:]
    if damage == "code":  # the numbers are sealed, and the model gives others
        parts["table"] += 1e-3
        parts["seal"] = _seal(file, parts["table"])
        save_file(parts, file)
    elif damage == "file":
        file.write_bytes(b"no table")
    elif damage == "other rows":
        rows = list(ROWS)
        rows[last], rows[before] = rows[before], rows[last]
        table_of(tmp_path, rows=rows)
        (other,) = set((tmp_path / ".ref_logprobs").iterdir()) - {file}
        other.replace(file)
        computed.pop()
    else:
        table = parts["table"]
        if damage == "unsealed":
            del parts["seal"]
        elif damage == "tail":
            table[last] = 0.0
        elif damage == "swapped":
            table[[last, before]] = table[[before, last]]
        elif damage == "bfloat16":
            parts["table"] = table.bfloat16()
        else:
            table[last] -= 20.0
        save_file(parts, file)
    capsys.readouterr()
    assert torch.equal(table_of(tmp_path), first)
    assert capsys.readouterr().err.count(REJECTED) == 1
    assert torch.equal(load_file(file)["table"], first)
    table_of(tmp_path)
    assert computed == [10, 10]


def test_a_table_that_cannot_be_synced_is_not_kept_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr("rlcore_dpo.reference.sync", lambda path: synced.append(path.suffix))
    table_of(tmp_path)
    assert synced == [f".{os.getpid()}", ""]  # the file under its temporary name, then its folder

    def fail(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rlcore_dpo.reference.sync", fail)
    assert table_of(tmp_path / "full").isfinite().all()
    assert list((tmp_path / "full" / ".ref_logprobs").iterdir()) == []


def sample(tokens: list[int], action_mask: list[bool]) -> Sample:
    return Sample(tokens=tokens, action_mask=action_mask)


PAIR = [sample([1, 2, 3], [False, False, True]), sample([1, 2, 4], [False, False, True])]


def exchange_names(model: Any) -> None:
    layer = model.model.layers[0].mlp
    layer.gate_proj, layer.up_proj = layer.up_proj, layer.gate_proj


def use_gelu(model: Any) -> None:
    model.model.layers[0].mlp.act_fn = torch.nn.GELU()


MODELS: dict[str, Callable[[Any], Any]] = {
    "a weight": lambda model: model.lm_head.weight.data[3, 2].add_(1e-3),
    "a buffer": lambda model: model.model.rotary_emb.inv_freq[1].add_(1e-3),
    "the names of two weights": exchange_names,
    "the precision of the weights": lambda model: model.to(torch.bfloat16),
    "the configuration": lambda model: setattr(model.config, "rms_norm_eps", 1e-3),
    "the kind of a layer": use_gelu,
}
TABLES = {
    "a token": [Pair(*PAIR), Pair(PAIR[1], sample([1, 2, 5], [False, False, True]))],
    "the action mask": [Pair(*PAIR), Pair(PAIR[1], sample([1, 2, 3], [False, True, True]))],
    "the order of rows": [Pair(PAIR[1], PAIR[0]), Pair(*PAIR)],
    "one row less": [Pair(*PAIR)],
}
CHANGES = [*MODELS, *TABLES, "the passes"]


def named(change: str) -> str:
    """Return the name of the file of a table after one of its inputs was changed."""
    model = make_llama()
    MODELS.get(change, id)(model)
    rows = TABLES.get(change, [Pair(*PAIR), Pair(PAIR[1], PAIR[0])])
    passes = "2 64 no" if change == "the passes" else "2 0 no"
    return ReferenceCache(Path("cache"), model, passes).path(rows).name


def test_every_input_of_a_table_gives_it_another_file() -> None:
    names = [named(change) for change in ["nothing", *CHANGES]]
    assert len(set(names)) == 1 + len(CHANGES), dict(zip(["nothing", *CHANGES], names, strict=True))
    assert named("nothing") == names[0]


def test_a_digest_depends_on_where_its_parts_are_cut() -> None:
    assert len({digest(parts) for parts in ([b"ab", b"c"], [b"a", b"bc"], [b"abc"], [b"abc", b""])}) == 4


@pytest.mark.parametrize("num_rows", range(1, 8))
def test_all_ranks_make_the_same_number_of_reference_passes(
    num_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrapped module waits for all ranks in each pass; whole tables are the sum of those of the ranks."""
    rows, counts, tables = ROWS[:num_rows], [], []
    whole = make(tmp_path / "one", make_gpt2(), rows, cache_ref=False, batch_size=1, micro_batch_size=2).reference
    for rank in range(3):
        ranks = SimpleNamespace(
            world=3, device=torch.device("cpu"), sum=lambda table: table,
            share=lambda count, own=rank: range(count)[own::3],
        )  # fmt: skip
        monkeypatch.setattr(whole, "run", SimpleNamespace(ranks=ranks))
        made: list[int] = []
        monkeypatch.setattr(
            whole, "_pass", lambda rows, chunk, score, own=made: own.append(len(chunk)) or torch.ones(len(chunk), 2)
        )
        tables.append(whole._table(whole.rows[0], lambda _: None))
        counts.append(len(made))
    assert len(set(counts)) == 1, counts
    assert torch.equal(sum(tables), torch.ones(num_rows, 2))


def test_a_table_of_another_version_of_torch_has_another_file(monkeypatch: pytest.MonkeyPatch) -> None:
    before = named("nothing")
    monkeypatch.setattr(torch, "__version__", "1.0")
    assert named("nothing") != before


@pytest.mark.parametrize(
    "changed", [{"micro_batch_size": 4}, {"micro_batch_tokens": 64}, {"sections": {"run": {"mixed_precision": "bf16"}}}]
)
def test_every_option_of_the_passes_gives_a_table_another_file(
    tmp_path: Path, computed: list[int], changed: dict[str, Any]
) -> None:
    sections = {"run": {"root": str(tmp_path), **changed.get("sections", {}).get("run", {})}}
    table_of(tmp_path)
    table_of(tmp_path, **{**changed, "sections": sections})
    assert computed == [10, 10]
    assert len(list((tmp_path / ".ref_logprobs").iterdir())) == 2


def test_no_pass_over_the_reference_exceeds_the_bounds_of_a_pass(tmp_path: Path) -> None:
    """A pass of n pairs has 2 n rows as long as its longest answer; a pair that exceeds the bound runs alone."""
    lengths = [3, 20, 8, 15, 4, 11, 6, 28, 9, 5]
    rows = [{"prompt": "p", "chosen": "c" * n, "rejected": "r" * (n // 2)} for n in lengths]
    for bound in (40, 64, 100, 0):
        reference = make(tmp_path / str(bound), make_gpt2(), rows, micro_batch_tokens=bound).reference
        longest = [max(len(each.tokens) for each in sequences_of(row)) for row in reference.rows[0]]
        chunks = reference._chunks(reference.rows[0])
        assert sorted(i for chunk in chunks for i in chunk) == list(range(10))
        assert max(map(len, chunks)) <= 6
        wide = [2 * len(chunk) * max(longest[i] for i in chunk) for chunk in chunks]
        assert all(not bound or len(chunk) == 1 or width <= bound for chunk, width in zip(chunks, wide, strict=True))
        shared = [width for chunk, width in zip(chunks, wide, strict=True) if len(chunk) > 1]
        if bound and shared:  # a pass of exactly as many tokens is allowed
            reference = make(tmp_path / f"{bound}-exactly", make_gpt2(), rows, micro_batch_tokens=max(shared)).reference
            found = reference._chunks(reference.rows[0])
            assert max(shared) in [2 * len(chunk) * max(longest[i] for i in chunk) for chunk in found if len(chunk) > 1]
        fewest = {40: 8, 64: 6, 100: 4, 0: 2}[bound]
        assert len(chunks) == fewest


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
