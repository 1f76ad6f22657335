from __future__ import annotations

import copy
import json
from collections import Counter

import numpy as np
import pytest

from rlcore.errors import CheckpointError, DataError
from rlcore.settings import DataConfig
from rlcore.training import Order
from rlcore_testing.small import LETTERS
from rlcore_transformers.data.mixtures import MixedRows, open_mixed_stream
from rlcore_transformers.data.pipelines import PROMPTS, SAMPLES
from rlcore_transformers.data.samples import build_samples
from rlcore_transformers.data.sources import load_source, parse_mixture
from rlcore_transformers.preferences.preferences import build_preferences

A = [{"prompt": "a" * k, "output": "x"} for k in range(1, 11)]
B = [{"prompt": "b" * k, "output": "y"} for k in range(1, 5)]


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, rows in (("a.jsonl", A), ("b.jsonl", B), ("empty.jsonl", [])):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def mixture(*weights, **more):
    entries = [{"path": "a.jsonl"}, {"path": "b.jsonl"}]
    entries = [entry | ({"weight": weight} if weight else {}) for entry, weight in zip(entries, weights, strict=True)]
    return [entries[0], entries[1] | more]


def rows_of(tokenizer, source, **options):
    return SAMPLES(source, tokenizer, DataConfig(**options), max_length=0, what="samples")


def letters(rows):
    return "".join(LETTERS[row.tokens[0]] for row in rows)


def test_the_share_of_each_source_lies_within_the_binomial_error_and_a_small_source_comes_again(char_tokenizer):
    rows = rows_of(char_tokenizer, mixture(1, 3))
    order = rows.order(rows, seed=3)
    taken = [rows[i] for _ in range(100) for i in order.take(20)]
    count = Counter(letters(taken))
    assert abs(count["b"] - 1500) < 4 * np.sqrt(2000 * 0.75 * 0.25)
    lengths = Counter(len(row.tokens) for row in taken if LETTERS[row.tokens[0]] == "b")
    assert max(lengths.values()) - min(lengths.values()) <= 1  # every row of a source comes once in a pass over it
    assert order.epoch == 2000 / 14


def test_the_shares_depend_on_the_seed_and_not_on_the_size_of_the_batches(char_tokenizer):
    rows = rows_of(char_tokenizer, mixture(1, 3))
    one, other, third = rows.order(rows, 0), rows.order(rows, 0), rows.order(rows, 1)
    assert [i for _ in range(10) for i in one.take(6)] == (whole := other.take(60))
    assert whole != third.take(60)


def test_without_weights_every_row_comes_once_in_a_pass(char_tokenizer):
    rows = rows_of(char_tokenizer, mixture(None, None))
    order = rows.order(rows, 5)
    batches = [order.take_within_pass(4) for _ in range(4)]
    assert [len(batch) for batch in batches] == [4, 4, 4, 2]
    assert sorted(i for batch in batches for i in batch) == list(range(14))
    assert order.metrics() == {"data/share/a": 10 / 14, "data/share/b": 4 / 14}
    assert order.metrics() == {}


def test_the_metrics_are_the_shares_and_passes_counted_by_hand(char_tokenizer):
    rows = rows_of(char_tokenizer, mixture(1, 1))
    order = rows.order(rows, 0)
    for seen in (8, 16):
        taken = letters([rows[i] for i in order.take(8)])
        found = order.metrics()
        assert found["data/share/a"] == taken.count("a") / 8
        assert found["data/share/b"] == taken.count("b") / 8
        assert found["data/epoch/a"] * 10 + found["data/epoch/b"] * 4 == pytest.approx(seen)


def test_a_resumed_order_continues_in_mid_epoch_and_a_copy_goes_its_own_way(char_tokenizer):
    rows = rows_of(char_tokenizer, mixture({0: 1, 5: 0}, 2))
    whole, first, resumed = (rows.order(rows, 2) for _ in range(3))
    expected = [whole.take(3) for _ in range(9)]
    for k in range(4):
        assert first.take(3) == expected[k]
    ahead = copy.copy(first)
    assert [ahead.take(3) for _ in range(5)] == expected[4:]
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [resumed.take(3) for _ in range(5)] == expected[4:]


def test_a_share_moves_linearly_over_the_steps(char_tokenizer):
    rows = rows_of(char_tokenizer, mixture({0: 1, 10: 0}, {"0": 0, "10": 1}))
    order = rows.order(rows, 0)
    taken = [letters([rows[i] for i in order.take(400)]) for _ in range(13)]
    assert set(taken[0]) == {"a"}
    assert [set(each) for each in taken[10:]] == [{"b"}] * 3
    for step in range(1, 10):  # the share of b is step / 10
        assert abs(taken[step].count("b") - 40 * step) < 4 * np.sqrt(400 * step / 10 * (1 - step / 10))


def test_a_checkpoint_with_other_weights_is_refused(char_tokenizer):
    rows, other = (rows_of(char_tokenizer, mixture(1, weight)) for weight in (2, 3))
    with pytest.raises(
        CheckpointError, match=r"written with the mixture \{'a': .*'b': \[\[0\.0, 2\.0\]\]\}, now it is"
    ):
        other.order(other, 0).load_state_dict(rows.order(rows, 0).state_dict())


def open_mixture(tokenizer, given, **options):
    data = DataConfig(streaming=True, **options)
    read = lambda rows, what: build_samples(rows, tokenizer, data, max_length=0, what=what)  # noqa: E731
    return SAMPLES.open_stream(given, data, seed=4, read=read)


ORDERS = {
    "plain": lambda tok: Order(14, 0),
    "mixed": lambda tok: (rows := rows_of(tok, mixture(1, 2))).order(rows, 0),
    "unweighted": lambda tok: (rows := rows_of(tok, mixture(None, None))).order(rows, 0),
    "mixed stream": lambda tok: open_mixture(tok, mixture(1, 2)),
    "stream": lambda tok: open_mixture(tok, "a.jsonl"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        ("mixed", "plain", "written with weighted prompts or samples, now there are 14"),
        ("plain", "mixed", r"written without a mixture, now it is \{'a': "),
        ("mixed", "unweighted", r"with the mixture \{'a': \[\[0\.0, 1\.0\]\].*, now it is \{'a': \[\], 'b': \[\]\}"),
        ("stream", "plain", "written with streamed prompts or samples, now there are 14"),
        ("mixed stream", "plain", "written with streamed prompts or samples, now there are 14"),
        ("mixed stream", "mixed", "by a run that streamed the mixture, and now its rows are read at once"),
        ("mixed", "mixed stream", "by a run that read all rows of the mixture at once, and now they are streamed"),
        ("mixed stream", "stream", r"a run that streamed the mixture \{'a': .*, and now one source is streamed"),
        ("stream", "mixed stream", r"written without a mixture, now it is \{'a': "),
    ],
)
def test_a_checkpoint_of_rows_in_another_order_is_refused_with_the_difference(char_tokenizer, before, now, message):
    state = json.loads(json.dumps(ORDERS[before](char_tokenizer).state_dict()))
    with pytest.raises(CheckpointError, match=message):
        ORDERS[now](char_tokenizer).load_state_dict(state)


def test_a_checkpoint_names_the_order_and_its_version_and_another_version_is_refused(char_tokenizer):
    order = ORDERS["mixed"](char_tokenizer)
    state = json.loads(json.dumps(order.state_dict()))
    assert (state["order"], state["version"], state["count"]) == ("weighted", 1, 14)
    assert "order" not in ORDERS["unweighted"](char_tokenizer).state_dict()
    with pytest.raises(CheckpointError, match="written by version 2 of the order of mixtures, and this is version 1"):
        order.load_state_dict({**state, "version": 2})


def test_a_checkpoint_of_sources_with_other_numbers_of_rows_is_refused(char_tokenizer):
    rows, other = (
        rows_of(char_tokenizer, [{"path": A[:n], "name": "a", "weight": 1}, {"path": B[:m], "name": "b", "weight": 1}])
        for n, m in ((8, 2), (7, 3))
    )
    with pytest.raises(CheckpointError, match=r"with the rows \{'a': 8, 'b': 2\} .*, now there are \{'a': 7, 'b': 3\}"):
        other.order(other, 0).load_state_dict(rows.order(rows, 0).state_dict())


def test_streamed_rows_come_from_the_same_sources_as_rows_in_memory_and_are_the_same_rows(char_tokenizer):
    given, data = mixture({0: 1, 6: 4}, 2), DataConfig(streaming=True)

    def open_one():
        read = lambda rows, what: build_samples(rows, char_tokenizer, data, max_length=0, what=what)  # noqa: E731
        return open_mixed_stream(parse_mixture(given, "samples"), data, seed=4, read=read)

    rows, stream, resumed = rows_of(char_tokenizer, given), open_one(), open_one()
    order = rows.order(rows, 4)
    in_memory = [[rows[i] for i in order.take(7)] for _ in range(8)]
    streamed = [[stream[i] for i in stream.take_within_pass(7)] for _ in range(4)]
    resumed.load_state_dict(json.loads(json.dumps(stream.state_dict())))
    streamed += [[resumed[i] for i in resumed.take_within_pass(7)] for _ in range(4)]
    assert list(map(letters, streamed)) == list(map(letters, in_memory))
    own = [row for batch in streamed for row in batch if LETTERS[row.tokens[0]] == "b"]
    assert own[:12] == rows_of(char_tokenizer, "b.jsonl") * 3
    assert resumed.metrics()["data/epoch/b"] == (len(own) - 1) // 4


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([{"path": "a.jsonl", "weight": 1}, {"path": "b.jsonl"}], r"samples\[1\]: has no weight, and samples\[0\] has"),
        ([{"path": "a.jsonl"}, {"path": "b.jsonl"}], r"samples\[0\]: has no weight, and the size of a stream is unkn"),
        ([{"path": "a.jsonl", "weight": 1}, {"path": B, "weight": 1}], r"samples\[1\] is .*list.*no stream"),
        (
            [{"path": "a.jsonl", "weight": 1}, {"path": "empty.jsonl", "weight": 1}],
            r"samples\[1\]: empty\.jsonl has no rows",
        ),
    ],
)
def test_a_mixture_that_cannot_be_streamed_is_named(char_tokenizer, given, message):
    data = DataConfig(streaming=True)
    read = lambda rows, what: build_samples(rows, char_tokenizer, data, max_length=0, what=what)  # noqa: E731
    with pytest.raises(DataError, match=message):
        open_mixed_stream(parse_mixture(given, "samples"), data, seed=0, read=read).take_within_pass(20)


def test_a_source_has_a_limit_a_name_and_columns_of_its_own(char_tokenizer):
    renamed = [{"question": row["prompt"], "reply": row["output"]} for row in B]
    own = {"prompt": "question", "output": "reply"}
    rows = rows_of(
        char_tokenizer, [{"path": "a.jsonl", "limit": 2}, {"path": renamed, "columns": own, "limit": 3, "name": "web"}]
    )
    assert isinstance(rows, MixedRows)
    assert {name: letters(part) for name, part in rows.parts().items()} == {"a": "aa", "web": "bbb"}
    assert list(rows) == rows_of(char_tokenizer, [*A[:2], *B[:3]])
    answers = [{"prompt": row["prompt"], "answer": row["output"]} for row in A]
    with_both = [{"path": answers, "limit": 1}, {"path": renamed, "columns": own, "limit": 1}]
    assert list(rows_of(char_tokenizer, with_both, columns={"output": "answer"})) == rows_of(
        char_tokenizer, [A[0], B[0]]
    )


def test_prompts_of_the_sources_alternate_and_have_the_columns_of_all(char_tokenizer):
    one, other = [{"prompt": "a", "answer": k} for k in range(3)], ["b"]
    given = [{"path": one, "name": "sums", "weight": 1}, {"path": other, "name": "words", "weight": 1}]
    prompts = PROMPTS(given, char_tokenizer, DataConfig(), max_length=0)
    assert [(each.text, each.source, each.columns["answer"]) for each in prompts] == [
        ("a", "sums", 0), ("b", "words", None), ("a", "sums", 1), ("a", "sums", 2),
    ]  # fmt: skip
    first, is_text = PROMPTS.preview(given, DataConfig(), what="prompts")
    assert is_text
    assert [(each.text, dict(each.columns)) for each in first] == [("a", {"answer": 0}), ("a", {"answer": 1})]


def test_the_order_of_pairs_knows_those_that_are_left_of_each_source(char_tokenizer):
    pairs = [[{"prompt": name, "chosen": "x" * k, "rejected": "y"} for k in (1, 0, 2)] for name in "ab"]
    given = [{"path": pairs[0], "name": "a", "weight": 1}, {"path": pairs[1], "name": "b", "weight": 3}]
    rows = build_preferences(given, char_tokenizer, DataConfig(), max_length=0)
    kept = [rows[i] for i in (5, 0, 2)]
    assert rows.members(kept) == [1, 0, 0]
    order = rows.order(kept, 0)
    assert Counter(order.take(400))[0] == pytest.approx(300, abs=35)
    with pytest.raises(DataError, match=r"samples\[1\]: no row of .* is left to learn from"):
        rows.order(kept[1:], 0)


def test_rows_that_have_a_path_are_no_mixture():
    for rows in ([{"path": "x.png", "prompt": "what?"}], [{"prompt": "a"}], ["a.jsonl"], [], {}):
        assert parse_mixture(rows, "prompts") is None
    assert load_source([{"path": "x.png", "prompt": "what?"}]) == [{"path": "x.png", "prompt": "what?"}]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([{"path": "a.jsonl", "weight": 0}], r"samples\[0\]\.weight = 0: must be a number above 0, or weights by step"),
        ([{"path": "a.jsonl", "weight": -1.5}], r"samples\[0\]\.weight = -1\.5: must be a number above 0"),
        ([{"path": "a.jsonl", "weight": True}], r"samples\[0\]\.weight = True: must be a number above 0"),
        ([{"path": "a.jsonl", "weight": float("nan")}], r"samples\[0\]\.weight = nan: must be a number above 0"),
        ([{"path": "a.jsonl", "weight": {}}], r"samples\[0\]\.weight = \{\}: must have the weight at one step"),
        ([{"path": "a.jsonl", "weight": {"x": 1}}], r"samples\[0\]\.weight: 'x' is no step; write weights by step"),
        ([{"path": "a.jsonl", "weight": {5: 1, "05": 2}}], r"weight: has two weights at step 5, 1 and 2; give one"),
        ([{"path": "a.jsonl", "weight": {0: -1}}], r"samples\[0\]\.weight\[0\] = -1: must be a number of at least 0"),
        (mixture({0: 1, 5: 0}, {0: 0, 5: 0, 9: 1}), r"samples: all weights are 0 at step 5; let one be positive"),
        ([{"path": "a.jsonl", "wieght": 3}], r"samples\[0\]: unknown key 'wieght'; did you mean 'weight'\? A source"),
        ([{"path": "a.jsonl", "limit": 0}], r"samples\[0\]\.limit = 0: must be a whole number of rows, at least 1"),
        ([{"path": "a.jsonl", "name": "a b"}], r"samples\[0\]\.name = 'a b': must be a word of letters"),
        ([{"path": "a.jsonl", "columns": 3}], r"samples\[0\]\.columns = 3: must rename columns, our name: theirs"),
        ([{"path": "", "weight": 1}], r"samples\[0\]\.path = '': must be a file, a data set or another source"),
        ([{"path": "a.jsonl"}, "b.jsonl"], r"samples\[1\] = 'b\.jsonl': is no source of a mixture, as others"),
        ([{"path": "a.jsonl"}, {"path": "a.jsonl"}], r"samples: two sources have the name 'a'; give each a name"),
        ([{"path": "a.jsonl"}, {"path": "empty.jsonl"}], r"samples\[1\]: 'empty\.jsonl' has no rows; leave this"),
        ([{"path": "a.jsonl"}, {"path": "none.jsonl"}], r"samples\[1\] = 'none\.jsonl': there is no such file"),
        ([{"path": "a.jsonl"}, {"path": [{"path": "b.jsonl"}]}], r"samples\[1\]\.path: is a mixture; list its sources"),
        ([{"path": "a.jsonl", "columns": {"prompt": "q"}}], r"samples\[0\]\.columns: no row has the column 'q' \(col"),
        ([{"path": "a.jsonl"}, {"path": [{"question": "b"}]}], r"samples\[1\]\[0\]: has an unknown form|samples\[1\]"),
    ],
)  # fmt: skip
def test_a_source_that_cannot_be_used_is_named(char_tokenizer, given, message):
    with pytest.raises(DataError, match=message):
        rows_of(char_tokenizer, given)


@pytest.mark.parametrize("read", [
    lambda tok, given: SAMPLES(given, tok, DataConfig(), max_length=0, what="eval_samples"),
    lambda tok, given: PROMPTS(given, tok, DataConfig(), max_length=0, what="eval_prompts"),
    lambda tok, given: PROMPTS.preview(given, DataConfig(), what="data.eval_prompts"),
    lambda tok, given: build_preferences(given, tok, DataConfig(), max_length=0, what="eval_samples"),
])  # fmt: skip
def test_weights_of_evaluation_rows_are_refused(char_tokenizer, read):
    with pytest.raises(DataError, match=r"eval_\w+\[0\]\.weight: every evaluation takes all rows once"):
        read(char_tokenizer, mixture(1, 2))


def test_weights_are_refused_where_rows_are_read_alike():
    with pytest.raises(DataError, match=r"rewards: is a mixture with weights, and all of its rows are read alike"):
        load_source(mixture(1, 2), "rewards")
    assert load_source(mixture(None, None, limit=2), "rewards") == [*A, *B[:2]]
