from __future__ import annotations

import gzip
import json
import sys
from functools import partial

import datasets
import pytest
import zstandard

from rlcore.errors import DataError
from rlcore.settings import DataConfig
from rlcore_transformers.data.sources import load_source
from rlcore_transformers.data.streams import open_stream

ROWS = [{"prompt": "a", "answer": "é 1"}, {"prompt": "b", "answer": "2, 3"}]
JSON_LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
TSV = "prompt\tanswer\na\té 1\nb\t2, 3\n"
CSV = 'prompt,answer\na,é 1\nb,"2, 3"\n'


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def compress(name, text):
    data = text.encode("utf-8")
    return {"gz": gzip.compress, "zst": zstandard.compress}.get(name.rpartition(".")[2], bytes)(data)


CASES = [
    ("rows.tsv", TSV), ("rows.jsonl.gz", JSON_LINES), ("rows.jsonl.zst", JSON_LINES), ("rows.csv.gz", CSV),
    ("rows.csv.zst", CSV), ("rows.tsv.zst", TSV), ("ROWS.TSV.GZ", TSV),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), CASES)
def test_a_file_gives_the_same_rows_streamed_compressed_or_not(tmp_path, name, text):
    (tmp_path / name).write_bytes(compress(name.lower(), text))
    assert load_source(name) == ROWS
    assert list(open_stream(name, DataConfig(streaming=True), seed=0)) == ROWS


def test_lines_and_arrays_may_be_compressed(tmp_path):
    (tmp_path / "lines.txt.gz").write_bytes(gzip.compress(b"eins\n\nzwei\n"))
    (tmp_path / "rows.json.zst").write_bytes(zstandard.compress(json.dumps(ROWS).encode()))
    assert load_source("lines.txt.gz") == ["eins", "zwei"]
    assert load_source("rows.json.zst") == ROWS


def test_a_pattern_and_a_folder_have_the_rows_of_their_files_in_the_order_of_the_names(tmp_path):
    (tmp_path / "parts" / "deep").mkdir(parents=True)
    for name, row in (("parts/b.jsonl", 1), ("parts/a.jsonl.gz", 0), ("parts/deep/c.jsonl", 2), ("d.jsonl.gz", 3)):
        (tmp_path / name).write_bytes(compress(name, json.dumps({"prompt": str(row)}) + "\n"))
    (tmp_path / "parts" / "notes.md").write_text("no rows")
    for source, expected in (
        ("parts", "01"), ("parts/*.jsonl*", "01"), ("parts/**/*.jsonl", "12"), (f"{tmp_path}/parts/?.jsonl", "1"),
        (["parts/deep/*.jsonl", "parts/b.jsonl"], "21"), ("*.gz", "3"),
    ):  # fmt: skip
        assert "".join(row["prompt"] for row in load_source(source)) == expected, source
    streamed = open_stream("parts/**/*.jsonl", DataConfig(streaming=True), seed=0)
    assert [row["prompt"] for row in streamed] == ["1", "2"]
    assert [row["prompt"] for row in open_stream("parts", DataConfig(streaming=True), seed=0)] == ["0", "1"]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("none/*.jsonl", r"samples = 'none/\*\.jsonl': no file matches this pattern: .*/none/\*\.jsonl"),
        ("empty", r"samples = '.*empty': this folder has no saved data set, and no file of \.jsonl, \.json, \.csv, "),
    ],
)
def test_a_pattern_or_folder_without_files_is_named(tmp_path, source, message, streaming):
    (tmp_path / "empty").mkdir()
    read = partial(open_stream, data=DataConfig(streaming=True), seed=0) if streaming else load_source
    with pytest.raises(DataError, match=message):
        read(source, what="samples")


@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.jsonl.zst", "rows.tsv.gz", "rows.csv.zst"])
@pytest.mark.parametrize("broken", [b"not compressed at all", None])
def test_a_compressed_file_that_is_broken_is_named(tmp_path, name, broken):
    (tmp_path / name).write_bytes(compress(name, JSON_LINES)[:-9] if broken is None else broken)
    with pytest.raises(DataError, match=rf"samples = '.*{name}': cannot be read|samples: .*{name}"):
        load_source(name, "samples")


def test_a_compressed_file_that_is_no_utf_8_is_named_with_its_line(tmp_path):
    (tmp_path / "rows.txt.gz").write_bytes(gzip.compress(b"fine\n" + "caf\u00e9\n".encode("latin-1")))
    with pytest.raises(DataError, match=r"rows\.txt\.gz, line 2: is not UTF-8 text"):
        load_source("rows.txt.gz")


def test_a_parquet_file_in_zst_names_the_package_that_is_missing(tmp_path, monkeypatch):
    datasets.Dataset.from_list(ROWS).to_parquet(tmp_path / "rows.parquet")
    (tmp_path / "rows.parquet.zst").write_bytes(zstandard.compress((tmp_path / "rows.parquet").read_bytes()))
    for name, text in (("rows.jsonl.zst", JSON_LINES), ("rows.csv.zst", CSV)):
        (tmp_path / name).write_bytes(compress("zst", text))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    for read in (load_source, partial(open_stream, data=DataConfig(streaming=True), seed=0)):
        with pytest.raises(DataError, match=r"need the package zstandard; .*'rlcore-transformers\[zstd\]'"):
            read("rows.parquet.zst")
        assert list(read("rows.jsonl.zst")) == list(read("rows.csv.zst")) == ROWS


def test_a_folder_that_was_saved_is_a_data_set_and_no_folder_of_files(tmp_path):
    datasets.Dataset.from_list(ROWS[:1]).save_to_disk(tmp_path / "saved")
    (tmp_path / "saved" / "more.jsonl").write_text(JSON_LINES)
    assert load_source("saved") == ROWS[:1]
