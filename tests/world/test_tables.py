"""Tables and lines as people publish them: cells stay texts, and a bad file is named with its line and the cause."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rlcore.errors import DataError
from rlcore.settings import DataConfig
from rlcore.types import SampleReward
from rlcore_transformers.data.pipelines import PROMPTS, SAMPLES, read_as_prompts
from rlcore_transformers.data.prompts import build_prompts
from rlcore_transformers.data.samples import build_samples
from rlcore_transformers.data.sources import load_source
from rlcore_transformers.data.streams import open_stream
from rlcore_transformers.preferences.preferences import build_preferences, build_unpaired


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(name, content):
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())


def read_whole(name):
    return load_source(name, "samples")


def read_as_stream(name):
    return list(open_stream(name, DataConfig(streaming=True), seed=0, what="samples"))


def read_in_mixture(name):
    sources = [{"path": name, "name": "one"}, {"path": name, "name": "two"}]
    return load_source(sources, "samples")[: len(load_source(name))]


WAYS = {
    "whole": (read_whole, "samples"), "stream": (read_as_stream, "samples"), "mixture": (read_in_mixture, "samples[0]"),
}  # fmt: skip

CELLS = ["007", "7", "7.0", "1e3", "None", "NA", "N/A", "null", "nan", "NaN", "True", "false", " 7 ", "1,5", "é", "-"]
"""Texts that readers of tables take for numbers, truth values or empty cells."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_cells_are_the_texts_of_the_file_and_only_a_cell_without_text_is_empty(name, way):
    separator = {"a.csv": ",", "a.tsv": "\t"}[name]
    quoted = [f'"{cell}"' if separator in cell else cell for cell in CELLS]
    write(name, "".join(f"{i}{separator}{cell}\n" for i, cell in [("id", "answer"), *enumerate([*quoted, ""])]))
    expected = [{"id": str(i), "answer": cell} for i, cell in enumerate([*CELLS, None])]
    assert WAYS[way][0](name) == expected


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("content", "rows"),
    [
        ('q,a\n"two\nlines","a, ""b"""\n', [{"q": "two\nlines", "a": 'a, "b"'}]),  # quoted
        ("q,a\r\n1,2\r\n\r\n3,4\r\n   \r\n", [{"q": "1", "a": "2"}, {"q": "3", "a": "4"}]),  # of Windows
        ("\ufeffq,a\n1,2\n", [{"q": "1", "a": "2"}]),  # Excel's mark in front
        (",q\n0,x\n1,y\n", [{"Unnamed: 0": "0", "q": "x"}, {"Unnamed: 0": "1", "q": "y"}]),  # the index of pandas
        ('q\n""\n x\n', [{"q": None}, {"q": " x"}]),  # one column
        (f"q\n{'x' * 200_000}\n", [{"q": "x" * 200_000}]),  # a long text
        ('q,a\n5" pipe,it\'s\n', [{"q": '5" pipe', "a": "it's"}]),  # a quotation mark inside a cell
    ],
    ids=["quoted", "windows", "excel", "index", "one column", "long", "inches"],
)  # fmt: skip
def test_tables_are_read_as_programs_write_them(content, rows, way):
    write("a.csv", content)
    assert WAYS[way][0]("a.csv") == rows


ICONV = "save the file as UTF-8, as with iconv -f CP1252 -t UTF-8 for one of Windows"
QUOTES = "A cell with quotes is itself in quotes, and each of its own is doubled. The line is "
BAD = [
    (
        "a.csv", "q,a\nx,caf\u00e9\n".encode("cp1252"),
        f"line 2: is not UTF-8 text (invalid continuation byte: byte 0xe9 after 'x,caf'); {ICONV}",
    ),
    (
        "a.jsonl", b'{"q": "x"}\n' + '{"q": "caf\u00e9"}\n'.encode("cp1252"),
        "line 2: is not UTF-8 text (invalid continuation byte: byte 0xe9 after '{\"q\": \"caf')",
    ),
    (
        "a.txt", "x\n\u201cy\u201d\n".encode("cp1252"),
        "line 2: is not UTF-8 text (invalid start byte: byte 0x93 after '')",
    ),
    (
        "a.csv", "q,a\nx,y\n".encode("utf-16"),
        "line 1: is UTF-16 text (it begins with the bytes ff fe 71 00), and files are read as UTF-8; save it as UTF-8",
    ),
    ("a.tsv", "q\ta\nx\ty\n".encode("utf-16-be"), "line 1: is UTF-16 text (it begins with the bytes 00 71 00 09)"),
    ("a.jsonl", '{"q": "x"}\n'.encode("utf-16"), "line 1: is UTF-16 text"),
    ("a.txt", "x\n".encode("utf-32"), "line 1: is UTF-32 text"),
    ("a.json", '[{"q": "x"}]'.encode("utf-16"), "line 1: is UTF-16 text"),
    (
        "a.csv", "q,a\n1,2\n3,4,5\n",
        "line 3: has 3 cell(s), and there are 2 columns (q, a); put a cell with a separator or a line break in quotes",
    ),
    ("a.csv", 'q,a\n"1\n1",2\n3\n', "line 4: has 1 cell(s), and there are 2 columns"),  # the line in the file
    ("a.tsv", 'q\ta\n1\t2\n3\t"4\n5\t6\n', "line 3: cannot be read as a table: unexpected end of data."),
    (
        "a.tsv", 'q\ta\n1\t"Hi" she said\n',
        f"line 2: cannot be read as a table: '\t' expected after '\"'. {QUOTES}'1\\t\"Hi\" she said\\n'",
    ),
    ("a.csv", "q,a,q\n1,2,3\n", "line 1: two columns have the name 'q'; rename one of them in the file"),
    ("a.jsonl", '{"q": "x"}\n\n{"q": "y",}\n', "line 3: cannot be read as JSON:"),
    ("a.jsonl", '{"q": "x"}\n{"q": "y"', "line 2: cannot be read as JSON:"),
    ("a.json", '{"q": "x"}\n{"q": \'y\'}\n', "line 2: cannot be read as JSON:"),
    ("a.json", '[{"q": "x"},\n{"q" "y"}]', "cannot be read as JSON: Expecting ':' delimiter: line 2 column 6"),
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "content", "cause"), BAD, ids=range(len(BAD)))
def test_a_file_that_cannot_be_read_is_named_with_its_line_and_the_cause(name, content, cause, way):
    write(name, content)
    read, what = WAYS[way]
    with pytest.raises(DataError) as caught:
        read(name)
    found = str(caught.value)
    assert re.match(rf"{re.escape(what)}(\.path)?: (.*/)?{re.escape(name)}[,:] ", found), found
    assert cause in found


def test_a_damaged_parquet_file_is_named_with_the_cause():
    write("a.parquet", b"PAR1 no more")
    for read in (read_whole, read_as_stream):
        with pytest.raises(DataError, match=r"samples = '.*a\.parquet': .* ArrowInvalid: .*\. The file is damaged"):
            read("a.parquet")


def test_a_bad_line_of_a_stream_is_named_when_its_step_is_due(char_tokenizer):
    write("a.jsonl", '{"text": "ab"}\n{"text": "cd"}\n{"text"\n')
    data = DataConfig(streaming=True)
    stream = SAMPLES.open_stream(
        "a.jsonl", data, seed=0,
        read=lambda rows, what: build_samples(rows, char_tokenizer, data, max_length=0, what=what),
    )  # fmt: skip
    assert len(stream.take_within_pass(2)) == 2
    with pytest.raises(DataError, match=r"^samples: .*a\.jsonl, line 3: cannot be read as JSON"):
        stream.take_within_pass(1)


def test_streams_of_every_type_have_the_rows_of_the_whole_file():
    write("a.csv", "q,n\na,007\nb,\n")
    write("a.tsv", "q\tn\na\t007\nb\t\n")
    write("a.jsonl", '{"q": "a", "n": {"x": 1}}\n{"q": "b", "n": {"y": null}}\n')  # keys of one row alone
    write("a.json", json.dumps([{"q": "a", "n": {"x": 1}}, {"q": "b", "n": [1]}]))
    write("a.txt", "a\n\nb\n")
    for name in ("a.csv", "a.tsv", "a.jsonl", "a.json"):
        assert read_as_stream(name) == read_whole(name)
    assert read_as_stream("a.txt") == [{"text": text} for text in read_whole("a.txt")] == [{"text": "a"}, {"text": "b"}]
    shuffled = open_stream(["a.csv", "a.csv"], DataConfig(streaming=True, shuffle_buffer=9), seed=0)
    assert sorted(row["n"] or "" for row in shuffled) == ["", "", "007", "007"]


def test_columns_have_the_types_that_the_option_states(char_tokenizer):
    write("a.csv", 'question,n,x,right,tags\na,007,1e3,TRUE,"[""x"", null]"\nb, 7 ,.5,0,\n')
    types = {"n": "int", "x": "float", "right": "bool", "tags": "json", "gone": "int"}
    data = DataConfig(columns={"prompt": "question"}, column_types=types)
    expected = [
        {"n": 7, "x": 1000.0, "right": True, "tags": ["x", None]}, {"n": 7, "x": 0.5, "right": False, "tags": None},
    ]  # fmt: skip
    assert [prompt.columns for prompt in PROMPTS("a.csv", char_tokenizer, data, max_length=0)] == expected
    assert [prompt.columns for prompt in PROMPTS.preview("a.csv", data, what="prompts")[0]] == expected
    assert [prompt.columns for prompt in read_as_prompts("a.csv", data, what="samples")] == expected
    assert [each.columns for each in read_as_prompts([{"path": "a.csv"}], data, what="samples")] == expected


@pytest.mark.parametrize(
    ("kind", "text", "named"),
    [
        ("int", "7.5", "int"), ("float", "1,5", "float"), ("bool", "yes", r"bool \(true, false, 1, 0\)"),
        ("json", "{'a': 1}", "json"),
    ],
)  # fmt: skip
def test_a_text_of_another_type_is_named(char_tokenizer, kind, text, named):
    rows = [{"prompt": "a", "n": None}, {"prompt": "b", "n": text}]
    message = rf"prompts\[1\]\['n'\]: is .*, and data.column_types states that it is of the type {named}; correct it"
    with pytest.raises(DataError, match=message):
        build_prompts(rows, char_tokenizer, DataConfig(column_types={"n": kind}), max_length=0)


def test_columns_whose_meaning_is_known_need_no_type(char_tokenizer):
    write("kto.csv", "prompt,completion,label\na,b,True\na,c,false\nb,c,1\nb,a,0\n")
    rows = build_unpaired("kto.csv", char_tokenizer, DataConfig(), max_length=0)
    assert [row.label for row in rows] == [True, False, True, False]
    write("dpo.csv", "prompt,chosen,rejected,margin,ref_chosen_logps,ref_rejected_logps\na,b,c,0.5,-1,-2.5\nb,c,a,,,\n")
    first, second = build_preferences("dpo.csv", char_tokenizer, DataConfig(), max_length=0)
    assert (first.margin, first.ref_logprobs, second.margin, second.ref_logprobs) == (0.5, (-1.0, -2.5), None, None)
    write("sft.csv", "prompt,output\na,b\nb,c\n")
    write("rewards.csv", 'reward\n-1.5\n"[1, 2]"\n')
    samples = build_samples("sft.csv", char_tokenizer, DataConfig(), max_length=0)
    assert [sample.action_mask for sample in samples] == [(False, True, True)] * 2  # the output and EOS
    found = SAMPLES.read_rewards("rewards.csv", samples, {}, what="rewards")
    assert found == [SampleReward((0, 0, -1.5), dense=False), SampleReward((0, 1, 2), dense=True)]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
def test_a_table_and_lines_of_the_same_texts_give_the_same_tokens(char_tokenizer, name):
    rows = [("a", "007"), ("b", "nan"), ("None", "7")]
    separator = "\t" if name == "a.tsv" else ","
    if name == "a.jsonl":
        content = "".join(json.dumps({"prompt": prompt, "output": output}) + "\n" for prompt, output in rows)
    else:
        content = "".join(f"{separator.join(row)}\n" for row in (("prompt", "output"), *rows))
    write(name, content)
    expected = build_samples([list(row) for row in rows], char_tokenizer, DataConfig(), max_length=0)
    assert build_samples(name, char_tokenizer, DataConfig(), max_length=0) == expected
