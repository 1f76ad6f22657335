"""Rows of evaluations among those to train on, and the line of lengths before a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import rlcore
from rlcore.settings import DataConfig
from rlcore_testing.small import make_gpt2, make_tokenizer
from rlcore_tools.equal_rows import WINDOW, Equal, find_equal
from rlcore_transformers.data.prompts import build_prompts
from rlcore_transformers.data.samples import build_samples
from rlcore_transformers.preferences.preferences import build_preferences

DATA = DataConfig()
FILE = "report/first rows.txt"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of bytes, with capitals, white space and any other character."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({word: i for i, word in enumerate(["<eos>", *letters])}, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")


def equal(tokenizer: Any, rows: Any, held_out: Any) -> Equal | None:
    first, other = (build_samples(each, tokenizer, DATA, max_length=0) for each in (rows, held_out))
    return find_equal(first, other, tokenizer)


def test_rows_are_counted_that_are_equal_but_for_case_and_white_space(tokenizer: Any) -> None:
    rows = [["What is\n1 + 1?", " Two"], ["what is 2?", "two"], ["one", "more"], ["What  is 1 + 1?", " two "]]
    found = equal(tokenizer, rows, [["x", "y"], ["WHAT IS 1 + 1?", " two"]])
    assert found == Equal(rows=2, prompts=0, of=4, first=0, other=1, text="'What is\\n1 + 1?'")


def test_rows_with_a_prompt_of_an_evaluation_are_counted_by_themselves(tokenizer: Any) -> None:
    rows = [["other", "x"], ["Why?", "because"], ["why?", "so"], ["so", "why?"]]
    found = equal(tokenizer, rows, [["why?", "So"], ["what?", "that"]])
    assert found == Equal(rows=1, prompts=1, of=4, first=2, other=0, text="'why?'")


def test_words_that_differ_in_white_space_alone_are_other_words(tokenizer: Any) -> None:
    assert equal(tokenizer, [["a bc", "x"], ["q", "r"]], [["ab c", "x"]]) is None


def test_letters_of_several_bytes_are_compared_as_text(tokenizer: Any) -> None:
    assert equal(tokenizer, [["Äé", "x"], ["q", "r"]], [["Äè", "x"]]) is None  # which begin with the same byte
    found = equal(tokenizer, [["Äé", "x"], ["q", "r"]], [["Äé", "X"]])
    assert found is not None
    assert (found.rows, found.prompts) == (1, 0)


def test_long_rows_are_equal_only_if_all_of_them_is(tokenizer: Any) -> None:
    end = "z" * 2 * WINDOW
    rows, spaced = [[f"{letter}{end}", "x"] for letter in "abc"], "z " * 2 * WINDOW
    found = equal(tokenizer, rows, [[f"C{end}", "X"]])
    assert found is not None
    assert (found.rows, found.first) == (1, 2)
    assert equal(tokenizer, rows, [[f"d{end}", "x"]]) is None
    found = equal(tokenizer, [[f"a{spaced}", "x"]], [[f"A{spaced.replace(' ', '   ')}", "x"]])
    assert found is not None


def test_texts_without_prompts_are_compared_as_a_whole(tokenizer: Any) -> None:
    found = equal(tokenizer, ["abc", "ABC  d", "x"], ["abc d"])
    assert found == Equal(rows=1, prompts=0, of=3, first=1, other=0, text="'ABC  d'")


def test_a_prompt_that_all_rows_have_does_not_count(tokenizer: Any) -> None:
    assert equal(tokenizer, [["go:", "a"], ["go:", "b"]], [["go:", "c"]]) is None
    found = equal(tokenizer, [["go:", "a"], ["go:", "b"]], [["go:", "b"]])
    assert found is not None
    assert (found.rows, found.prompts) == (1, 0)


def test_pairs_are_equal_if_both_answers_are_and_prompts_are_found_among_samples(tokenizer: Any) -> None:
    pairs = [{"prompt": "aa", "chosen": x, "rejected": "z"} for x in "bc"]
    pairs.append({"prompt": "kk", "chosen": "l", "rejected": "m"})
    rows, other = (build_preferences(each, tokenizer, DATA, max_length=0) for each in (pairs, pairs[1:2]))
    found = find_equal(rows, other, tokenizer)
    assert found is not None
    assert (found.rows, found.prompts, found.first) == (1, 1, 1)
    prompts = build_prompts(["AA", "q"], tokenizer, DATA, max_length=0)
    found = find_equal(rows, prompts, tokenizer)
    assert found is not None
    assert (found.rows, found.prompts) == (0, 2)
    found = find_equal(prompts, build_prompts(["aa"], tokenizer, DATA, max_length=0), tokenizer)
    assert found is not None
    assert (found.rows, found.prompts) == (1, 0)


def train(folder: Path, **given: Any) -> None:
    rlcore.train(
        make_gpt2(),
        tokenizer=make_tokenizer(),
        run={"steps": 1, "root": str(folder), "name": "run"},
        loggers=[],
        **given,
    )


SAMPLES = [["ab", "c"], ["d e", "fg"], ["h", "i" * 20], ["jj", "k"]]


def test_a_run_warns_of_rows_of_its_evaluation_and_shows_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, trainer="sft", samples=SAMPLES, eval_samples=[["d  e", "fg"], ["jj", "x"]])
    said = (
        "samples: 1 of 4 rows are rows of eval_samples too, and 1 more have a prompt of eval_samples, but for case and "
        "white space, so that evaluations measure in part what is trained on. The first is samples[1], equal to "
        "eval_samples[0]: 'd e'. Remove such rows from samples, or evaluate other rows"
    )
    error = capsys.readouterr().err
    assert error.count(said) == 1
    assert f"[warning  ] {said}" in error
    assert said in (tmp_path / "run" / FILE).read_text()


def test_the_lengths_of_all_rows_are_one_line_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lengths by hand, each with EOS: 4, 6, 8 (of 22) and 4 tokens; 2, 3, 7 and 2 of them are in the loss."""
    train(tmp_path, trainer="sft", samples=SAMPLES, eval_samples=[["x", "y"]], data={"max_sample_tokens": 8})
    lines = [line for line in capsys.readouterr().err.splitlines() if "tokens: " in line]
    (line,) = lines
    assert "] samples: 4 rows; tokens: 4 to 8, median 5, 95 % have at most 8; the model's context has 64; " in line
    assert "14 of 22 tokens are trained; truncated: 1 (1 by data.max_sample_tokens = 8)" in line
    text = (tmp_path / "run" / FILE).read_text()
    assert "95 % have at most 8" in text
    assert "truncated: 1 (1 by data.max_sample_tokens = 8)" in text
    assert "eval_samples: 1 row\ntokens: 3 to 3, median 3" in text


def test_rows_that_the_trainer_leaves_out_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [{"prompt": "a", "chosen": x, "rejected": "b"} for x in "bcd"]
    train(tmp_path, trainer={"name": "dpo", "batch_size": 2}, samples=pairs)
    assert "samples: 3 rows, of which the trainer leaves out 1; tokens: " in capsys.readouterr().err


def test_truncated_prompts_name_their_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(
        tmp_path, trainer={"name": "grpo", "rollouts": 2, "num_generations": 2}, prompts=["abcd", "efghi", "j"],
        eval_prompts=["EFGHI".lower()], reward_fn=lambda outputs: [float(len(each)) for each in outputs],
        data={"max_prompt_tokens": 4}, gen={"max_new_tokens": 2},
    )  # fmt: skip
    error = capsys.readouterr().err
    assert "prompts: 3 rows; tokens: 1 to 4, median 4" in error
    assert "truncated: 2 (2 by data.max_prompt_tokens = 4, or just fit)" in error
    assert "prompts: 1 of 3 rows are rows of eval_prompts too" in error


def test_streamed_rows_are_left_out_and_a_line_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream = Dataset.from_list([{"prompt": a, "output": b} for a, b in SAMPLES]).to_iterable_dataset()
    train(tmp_path, trainer={"name": "sft", "batch_size": 2}, samples=stream, eval_samples=SAMPLES)
    error = capsys.readouterr().err
    assert "samples: are streamed; neither their lengths nor rows that evaluations have too are counted" in error
    assert "measure in part" not in error
