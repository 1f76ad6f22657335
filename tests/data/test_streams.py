from __future__ import annotations

import json

import datasets
import pytest
import torch

import rlcore
from rlcore.errors import CheckpointError, ConfigError, DataError
from rlcore.settings import DataConfig
from rlcore_testing.small import LETTERS, make_gpt2, make_tokenizer
from rlcore_transformers.data.samples import build_samples
from rlcore_transformers.data.streams import SampleStream, open_stream

ROWS = [{"prompt": LETTERS[i], "output": LETTERS[i + 1]} for i in range(10)]


def iterable(rows=ROWS, *, read=None):
    """Return a stream of rows; `read` receives each row that is read."""

    def generate():
        for row in rows:
            if read is not None:
                read.append(row)
            yield row

    return datasets.IterableDataset.from_generator(generate)


def stream_of(source, tokenizer, **options):
    data = DataConfig(**options)
    rows = open_stream(source, data, seed=3)
    return SampleStream(rows, lambda rows, what: build_samples(rows, tokenizer, data, max_length=0, what=what))


def take(stream, num):
    return [stream[i] for i in stream.take_within_pass(num)]


def test_a_stream_gives_the_rows_of_each_pass_in_their_order(char_tokenizer):
    expected = build_samples(ROWS, char_tokenizer, DataConfig(), max_length=0)
    stream = stream_of(iterable(), char_tokenizer)
    for number in range(2):
        assert [take(stream, 4) for _ in range(3)] == [expected[:4], expected[4:8], expected[8:]]
        assert stream.epoch == number
    assert stream.num_batches(4) is None


@pytest.mark.parametrize("buffer", [0, 4])
@pytest.mark.parametrize("done", [1, 3, 5])
def test_a_resumed_stream_continues_with_the_next_row(char_tokenizer, buffer, done):
    whole, first, resumed = (stream_of(iterable(), char_tokenizer, shuffle_buffer=buffer) for _ in range(3))
    expected = [take(whole, 4) for _ in range(8)]
    for _ in range(done):
        take(first, 4)
    resumed.head()  # as a run does to recognise its data
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [take(resumed, 4) for _ in range(8 - done)] == expected[done:]
    passes = [[sample.tokens for batch in expected[k : k + 3] for sample in batch] for k in (0, 3)]
    assert (passes[0] == passes[1]) is (buffer == 0)  # shuffled again
    assert sorted(passes[0]) == sorted(passes[1])


def test_unusable_rows_of_a_stream_are_skipped(char_tokenizer):
    stream = stream_of(iterable(), char_tokenizer)
    stream.is_usable = lambda sample: sample.tokens[0] % 2 == 0
    assert [sample.tokens[0] for sample in take(stream, 4)] == [0, 2, 4, 6]
    assert [sample.tokens[0] for sample in take(stream, 4)] == [8]
    stream.is_usable = lambda sample: False
    with pytest.raises(DataError, match=r"samples: the stream has no row from which anything can be learned"):
        take(stream, 4)


def test_streamed_rows_that_are_truncated_or_left_out_are_counted_in_the_first_pass(char_tokenizer, capsys):
    rows = [{"prompt": "a", "output": "bcd" if i % 2 else "b"} for i in range(43)] + [{"prompt": "d", "output": "b"}]
    stream = stream_of(iterable(rows), char_tokenizer, max_sample_tokens=3, append_eos=False)
    stream.is_usable = lambda sample: sample.tokens[0] == 0
    for _ in range(24):
        take(stream, 4)
    counts = [line.split("[data] ")[1] for line in capsys.readouterr().err.splitlines()]
    assert counts == ["read=4 truncated=2", "read=40 truncated=20", "left_out=1 read=44 truncated=21"]


def test_files_names_and_functions_are_streamed_on_demand(tmp_path, monkeypatch, char_tokenizer):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "streaming_rows.py").write_text(
        "import datasets\n\ndef rows():\n"
        "    return datasets.load_dataset('json', data_files='rows.jsonl', split='train', streaming=True)\n"
    )
    expected = build_samples(ROWS[:3], char_tokenizer, DataConfig(), max_length=0)
    load = datasets.load_dataset

    def load_here(path, *rest, **how):
        if path != "org/name":
            return load(path, *rest, **how)
        assert (how["name"], how["split"], how["streaming"]) == ("main", "train", True)
        return iterable()

    monkeypatch.setattr(datasets, "load_dataset", load_here)
    for source in ("rows.jsonl", "org/name:main:train", "streaming_rows:rows"):
        assert take(stream_of(source, char_tokenizer, streaming=True), 3) == expected
    assert open_stream("rows.jsonl", DataConfig(), seed=0) is None


def test_a_list_of_files_is_streamed_one_after_the_other(tmp_path, monkeypatch, char_tokenizer):
    monkeypatch.chdir(tmp_path)
    for name, rows in (("a.jsonl", ROWS[:2]), ("b.jsonl", ROWS[2:5])):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = build_samples([*ROWS[2:5], *ROWS[:2]], char_tokenizer, DataConfig(), max_length=0)
    assert take(stream_of(["b.jsonl", "a.jsonl"], char_tokenizer, streaming=True), 5) == expected
    for names, message in (
        (["a.jsonl", "c.csv"], r"files of the types \.jsonl, \.csv; .* of one type"),
        (["a.jsonl", "c.jsonl"], r"samples\[1\] = 'c\.jsonl': there is no such file"),
    ):
        with pytest.raises(DataError, match=message):
            open_stream(names, DataConfig(streaming=True), seed=0)


def run_sft(tmp_path, name, source, *, steps, **options):
    torch.manual_seed(0)
    sections = {"run": {"steps": steps, "root": str(tmp_path), "name": name, **options.pop("run", {})}}
    trainer = {"name": "sft", "batch_size": 4, "optimizer": {"lr": 1e-2}}
    return rlcore.train(
        make_gpt2(), tokenizer=make_tokenizer(), samples=source, trainer=trainer, loggers=[], **sections, **options
    )


@pytest.mark.slow
def test_a_resumed_run_on_a_stream_equals_one_without_interruption_and_reads_no_more_than_it_needs(tmp_path):
    read = []
    options = {"data": {"shuffle_buffer": 3}, "checkpoint": {"every": 2}}
    whole = run_sft(tmp_path, "whole", iterable(), steps=5, **options)
    run_sft(tmp_path, "parts", iterable(), steps=2, **options)
    parts = run_sft(tmp_path, "parts", iterable(), steps=5, run={"resume": "auto"}, **options)
    for one, other in zip(whole.policy.module.parameters(), parts.policy.module.parameters(), strict=True):
        assert torch.equal(one, other)
    endless = [ROWS[i % 10] for i in range(10_000)]
    run_sft(tmp_path, "endless", iterable(endless, read=read), steps=3)
    assert len(read) < 100


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"trainer": {"name": "ilql"}, "rewards": [1.0] * 10}, DataError, r"samples: is a stream \(Iter"),
        ({"run": {"epochs": 1}}, ConfigError, r"run.epochs = 1: the samples are streamed, .*set run.steps"),
        ({"eval_samples": iterable()}, DataError, r"eval_samples: is a stream \(IterableDataset\), but all"),
        ({"samples": ["ab"], "data": {"streaming": True}}, DataError, r"data.streaming: samples is .*list.*no stream"),
        ({"samples": None, "prompts": ["ab"], "reward_fn": len, "trainer": {"name": "ppo"},
          "data": {"streaming": True}, "run": {"steps": 9, "check_functions": False}},
         DataError, r"data.streaming: there are no samples, and nothing else is streamed \(prompts"),
        ({"samples": iterable([])}, DataError, r"samples is empty"),
        ({"samples": iterable([*ROWS, *ROWS, {"prompt": 3}])}, DataError, r"samples\[20:\]\[0\]: has an unk"),
    ],
)  # fmt: skip
def test_a_source_that_cannot_be_streamed_is_named(tmp_path, options, error, message):
    settings = {"trainer": {"name": "sft", "batch_size": 4}, "samples": iterable(), **options}
    run = settings.pop("run", {"steps": 9})
    with pytest.raises(error, match=message):
        rlcore.train(
            make_gpt2(), tokenizer=make_tokenizer(), loggers=[], run={"root": str(tmp_path), **run}, **settings
        )


def test_a_checkpoint_of_rows_in_memory_is_refused(char_tokenizer):
    with pytest.raises(CheckpointError, match=r"read all samples at once, and now they are streamed"):
        stream_of(iterable(), char_tokenizer).load_state_dict({"position": 3, "count": 10, "seed": 0})


def test_a_streamed_conversation_gives_one_sample(chat_tokenizer):
    talk = [{"role": role, "content": "the cat"} for role in ("user", "assistant")]
    stream = stream_of(iterable([{"messages": talk}]), chat_tokenizer, turns="each")
    assert len(take(stream, 1)) == 1
    stream = stream_of(iterable([{"messages": talk * 2}]), chat_tokenizer, turns="each")
    with pytest.raises(DataError, match=r"samples\[0:\]: 1 rows give 2 samples, and a streamed row gives one"):
        take(stream, 1)
