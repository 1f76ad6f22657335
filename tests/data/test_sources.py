from __future__ import annotations

import json
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch

from rlcore.errors import DataError
from rlcore_transformers.data.sources import load_reference, load_source

ROWS = [{"prompt": "a b", "n": 1}, {"prompt": "c", "n": 2}]

RAISING = """
class Mute(Exception):
    def __str__(self): raise RuntimeError

def rows():
    yield "a"
    1 / 0

def unprintable(): raise Mute

class Silent(Exception):
    def __str__(self): raise SystemExit(0)

def silent(): raise Silent

def leaving():
    yield "a"
    raise SystemExit(0)
"""


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize("source", [ROWS, tuple(ROWS), iter(ROWS), datasets.Dataset.from_list(ROWS)])
def test_rows_in_memory_are_returned_unchanged(source):
    assert load_source(source) == ROWS


def test_loading_a_list_returns_a_copy():
    rows = list(ROWS)
    load_source(rows).append("more")
    assert rows == ROWS


def test_numpy_arrays_and_data_frames_are_read_as_rows():
    pandas = pytest.importorskip("pandas")
    assert load_source(np.array([0.5, 1.0]), "rewards") == [0.5, 1.0]
    assert load_source(pandas.DataFrame(ROWS)) == ROWS


def test_a_formatted_dataset_gives_plain_rows():
    formatted = datasets.Dataset.from_list(ROWS).with_format("numpy")
    assert load_source(formatted) == ROWS
    assert formatted.format["type"] == "numpy"


def test_files_of_every_kind_hold_the_same_rows(tmp_path):
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)) + "\n\n")
    (tmp_path / "lines.json").write_text("\n".join(map(json.dumps, ROWS)))
    (tmp_path / "rows.json").write_text(json.dumps(ROWS, indent=1))
    datasets.Dataset.from_list(ROWS).to_csv(tmp_path / "rows.csv")
    datasets.Dataset.from_list(ROWS).to_parquet(tmp_path / "rows.parquet")
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "folder")
    for name in ("rows.jsonl", "lines.json", "rows.json", "rows.csv", "rows.parquet", "folder"):
        rows = [{**row, "n": str(row["n"])} for row in ROWS] if name == "rows.csv" else ROWS
        assert load_source(name) == rows, name
        assert load_source(tmp_path / name) == rows, name


def test_a_saved_data_set_may_have_splits(tmp_path):
    other = datasets.Dataset.from_list(ROWS[:1])
    datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS), test=other).save_to_disk(tmp_path / "saved")
    assert load_source("saved") == load_source("saved:train") == ROWS
    assert load_source(f"{tmp_path}/saved:test") == ROWS[:1]
    with pytest.raises(DataError, match=r"'saved:trian': there is no split 'trian', only 'train', 'test'"):
        load_source("saved:trian")


CELLS = {"prompt": "a b", "n": "1"}


@pytest.fixture
def two_files(tmp_path):
    (tmp_path / "a.csv").write_text("prompt,n\na b,1\n")  # whose cells are texts
    (tmp_path / "my b.JSONL").write_text(json.dumps(ROWS[1]) + "\n")


@pytest.mark.usefixtures("two_files")
def test_a_list_of_file_names_has_the_rows_of_all_files(tmp_path):
    for names in (["a.csv", "my b.JSONL"], ("a.csv", tmp_path / "my b.JSONL"), [tmp_path / "a.csv", "my b.JSONL"]):
        assert load_source(names, "samples") == [CELLS, ROWS[1]]
    assert load_source(["my b.JSONL", "a.csv", "a.csv"]) == [ROWS[1], CELLS, CELLS]
    (tmp_path / "files_by_name.py").write_text("def rows(): return ['a.csv', 'my b.JSONL']")
    assert load_source("files_by_name:rows") == [CELLS, ROWS[1]]


@pytest.mark.usefixtures("two_files")
def test_a_list_may_name_folders_of_saved_data_sets(tmp_path):
    rows = datasets.Dataset.from_list(ROWS)
    rows.save_to_disk("saved")
    datasets.DatasetDict(train=rows).save_to_disk("split")
    (tmp_path / "why").mkdir()
    assert load_source(["saved", "split", "a.csv"], "samples") == [*ROWS, *ROWS, CELLS]
    assert load_source(["why", "saved"]) == ["why", "saved"]


@pytest.mark.usefixtures("two_files")
@pytest.mark.parametrize(
    ("source", "message"),
    [
        (["a.csv", "c.csv"], r"samples\[1\] = 'c.csv': there is no such file: /"),
        (["c.csv"], r"samples\[0\] = 'c.csv': there is no such file"),
        (["a.csv", "Tell me"], r"samples\[0\] = 'a.csv': names a file, and samples\[1\] = 'Tell me' does not.*{text"),
        (["Tell me", "c.csv"], r"samples\[1\] = 'c.csv': names a file, and samples\[0\] = 'Tell me'"),
        (["Tell me", "my b.JSONL"], r"samples\[1\] = 'my b.JSONL': names a file"),
        (["Tell me", Path("text")], r"samples\[1\] = 'text': names a file"),
        ([__file__, "a.csv"], r"unknown file type '.py'"),
    ],
)
def test_a_list_with_the_name_of_a_file_is_never_rows_of_text(source, message):
    with pytest.raises(DataError, match=f"(?s){message}"):
        load_source(source, "samples")


@pytest.mark.usefixtures("two_files")
@pytest.mark.parametrize(
    "texts",
    [
        ["Write it to a.csv", "Tell me"],
        ["Tell me\nrows.csv", "b"],
        ["a", "a.b", "csv", "u/a.csvs"],
        [],
        [["a.csv", "b.csv"]],
        [{"prompt": "a.csv"}],
    ],
)
def test_texts_that_end_in_the_name_of_a_file_remain_texts(texts):
    assert load_source(texts) == texts


def test_a_text_file_has_one_row_a_line_blank_ones_left_out(tmp_path):
    (tmp_path / "rows.txt").write_text("one \r\n\ntwo\u2028still two\n", encoding="utf-8-sig", newline="")
    assert load_source("rows.txt") == ["one ", "two\u2028still two"]


def test_rows_of_one_json_file_may_differ_in_keys_and_kind(tmp_path):
    rows = [{"prompt": "a"}, {"prompt": "b", "n": "x"}, ["p", "o"], "text"]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert load_source("rows.jsonl") == rows


def test_a_source_may_name_a_function_of_the_working_folder(tmp_path):
    (tmp_path / "my_rows_one.py").write_text(f"def rows():\n    return {ROWS!r}\nLISTED = ['x']\n")
    before = list(sys.path)
    assert load_source("my_rows_one:rows") == ROWS
    assert load_source("my_rows_one:LISTED") == ["x"]
    assert sys.path == before


def test_a_mistyped_function_is_answered_with_the_functions_of_the_module_and_not_with_its_imports(tmp_path):
    (tmp_path / "my_scores.py").write_text(
        "import json, os\nfrom math import sqrt\nLIMIT = 3\ndef by_length(outputs): ...\ndef by_form(outputs): ...\n"
    )
    with pytest.raises(DataError, match=r"has no 'by_lenght', only 'by_length', 'by_form', 'sqrt', 'LIMIT'$"):
        load_reference("my_scores:by_lenght", "reward_fn")


def test_the_working_folder_shadows_no_installed_module(tmp_path):
    (tmp_path / "attrs.py").write_text("raise SystemExit('shadowed')")
    (tmp_path / "colorsys.py").write_text("raise SystemExit('shadowed')")
    sys.modules.pop("colorsys", None)
    assert callable(load_reference("colorsys:rgb_to_hls", "reward_fn"))


def test_a_function_as_source_may_return_a_file_name(tmp_path):
    (tmp_path / "my_rows_two.py").write_text("def rows():\n    return 'rows.txt'\n")
    (tmp_path / "rows.txt").write_text("one\n")
    assert load_source("my_rows_two:rows") == ["one"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("lost.jsonl", r"prompts = 'lost.jsonl': there is no such file: /.*lost\.jsonl"),
        ("My favourite animal", r"is neither a file nor .*Pass a single text in a list: \['My favourite animal'\]"),
        (
            "no_such_module:f",
            r"'no_such_module:f': importing 'no_such_module' failed, ModuleNotFoundError.* modules and /",
        ),
        ("json:lost", r"'json:lost': .*json/__init__\.py has no 'lost', only "),
        ("broken_rows:rows", r"the function raised ZeroDivisionError: division by zero"),
        ("leaving_rows:rows", r"'leaving_rows:rows': importing 'leaving_rows' failed, SystemExit: 0"),
        ("broken_rows:leave", r"'broken_rows:leave': the function raised SystemExit: 0"),
        ("foreign_rows:rows", r"'foreign_rows:rows': importing 'foreign_rows' failed, Foreign: no\. Searched"),
        ("exiting_rows:rows", r"'exiting_rows:rows': reading 'rows' raised SystemExit: 0"),
        ("broken_rows:leave.x", r"'broken_rows:leave\.x': broken_rows has no 'x'$"),
        ("raising_rows:silent", r"the function raised Silent$"),
        ("odd.yaml", r"unknown file type '\.yaml'; known are \.jsonl, \.json, \.csv, \.tsv, \.parquet, \.txt"),
        ("bad.jsonl", r"prompts: bad\.jsonl, line 2: cannot be read as JSON: .* The text begins '\{oops"),
        ("latin.txt", r"prompts: latin\.txt, line 1: is not UTF-8 text"),
        ("deep.jsonl", r"prompts: deep\.jsonl, line 2: cannot be read as JSON: .*nested more than 100 deep"),
        ("digits.json", r"prompts: digits\.json: cannot be read as JSON: Exceeds the limit"),
        ("a" * 5000, r"prompts = 'a{76}\.\.\.: is neither a file nor"),
        ("raising_rows:rows", r"reading the rows raised ZeroDivisionError: division by zero"),
        ("raising_rows:unprintable", r"the function raised Mute$"),
        ("raising_rows:leaving", r"reading the rows raised SystemExit: 0"),
        ("bad.parquet", r"prompts = 'bad.parquet': the datasets library could not load it"),
        ("nobody/nothing", r"prompts = 'nobody/nothing': the datasets library could not load it, .* Check the name"),
        (3, r"prompts: cannot read rows from 3 \(int\); pass a list"),
        (b"abc", r"prompts: cannot read rows from b'abc' \(bytes\)"),
        ({"prompt": ["a"]}, r"prompts: got a dict with keys 'prompt', but rows are needed: a list"),
        (
            datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}),
            r"got a DatasetDict with keys 'train', but rows are needed; name a split, as in source\['train'\]",
        ),
    ],
)
def test_unreadable_sources_are_named(tmp_path, source, message):
    (tmp_path / "broken_rows.py").write_text("def rows():\n    return 1 / 0\ndef leave():\n    raise SystemExit(0)\n")
    (tmp_path / "exiting_rows.py").write_text("import sys\ndef __getattr__(name): sys.exit(0)\n")
    (tmp_path / "foreign_rows.py").write_text("class Foreign(BaseException): pass\nraise Foreign('no')\n")
    (tmp_path / "leaving_rows.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "odd.yaml").write_text("a: 1")
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a"}\n{oops\n')
    (tmp_path / "latin.txt").write_bytes("caf\u00e9".encode("latin-1"))
    (tmp_path / "bad.parquet").write_bytes(b"not parquet at all")
    (tmp_path / "deep.jsonl").write_text('{"prompt": "a"}\n' + "[" * 3000 + "]" * 3000 + "\n")
    (tmp_path / "digits.json").write_text("[" + "9" * 5000 + "]")
    (tmp_path / "raising_rows.py").write_text(RAISING)
    with pytest.raises(DataError, match=message):
        load_source(source)


def test_a_module_that_changes_the_defaults_of_torch_is_refused(tmp_path):
    (tmp_path / "double_rows.py").write_text("import torch\ntorch.set_default_dtype(torch.float64)\nrows = ['a']\n")
    with pytest.raises(DataError, match=r"importing 'double_rows' changed the defaults of torch to torch\.float64"):
        load_source("double_rows:rows")
    assert torch.get_default_dtype() == torch.float32
