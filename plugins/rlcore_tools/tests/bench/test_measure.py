"""Tests of the verdicts: intervals are worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from rlcore_report.metric_groups import Series
from rlcore_testing.small import make_llama
from rlcore_tools.bench import case_chat
from rlcore_tools.bench.contest import compare
from rlcore_tools.bench.measure import compare_learning, compare_resource, learning_figures


def test_an_interval_of_differences_is_students() -> None:
    # differences 1, 2, 3: mean 2, standard deviation 1, t = 4.303, half width 4.303 / sqrt(3) = 2.484
    found = compare_learning("c", "reward", [10.0, 20.0, 30.0], [11.0, 22.0, 33.0], better="more")
    assert (found.change, found.low, found.high) == pytest.approx((2.0, -0.484, 4.484), abs=1e-3)
    assert (found.before, found.after, found.count, found.word) == (20.0, 22.0, 3, "same")


def test_an_interval_of_times_is_computed_from_the_logarithms_of_ratios() -> None:
    # ratios 2 and 8: the mean of their logarithms is log 4, its half width t * log(2) * sqrt(2) / sqrt(2), where t with
    # one degree of freedom is a quantile of Cauchy's distribution, tan(.475 pi) = 12.7062
    found = compare_resource("c", "time", [1.0, 5.0], [2.0, 40.0])
    half = math.tan(0.475 * math.pi) * math.log(2)
    assert found.change == pytest.approx(3.0)
    assert (found.low, found.high) == pytest.approx((4 * math.exp(-half) - 1, 4 * math.exp(half) - 1))


def test_differences_that_vary_by_rounding_alone_show_any_change() -> None:
    found = compare_learning("c", "m", [0.1, 0.2, 0.7], [0.4, 0.5, 1.0], better="more")
    assert 0.4 - 0.1 != 0.5 - 0.2
    assert (found.shown_change, found.shown_visible) == ("+0.3 (+0.3 to +0.3)", "0")
    assert found.low == found.high
    varied = compare_learning("c", "m", [0.1, 0.2, 0.7], [0.4, 0.5, 1.0 + 1e-9], better="more")
    assert 0 < varied.visible < 1e-8


@pytest.mark.parametrize(("better", "after", "word"), [
    ("more", [2.0, 2.1, 2.2], "better"), ("less", [2.0, 2.1, 2.2], "worse"), ("more", [0.5, 0.6, 0.7], "worse"),
    ("more", [1.005, 1.105, 1.205], "same"),  # the interval is [.005, .005], below 1 %
])  # fmt: skip
def test_learning_is_judged_by_the_direction_that_is_better(better: str, after: list[float], word: str) -> None:
    assert compare_learning("c", "m", [1.0, 1.1, 1.2], after, better=better).word == word  # type: ignore[arg-type]


@pytest.mark.parametrize("mean", [0.01, 1.0, -500.0])
def test_a_difference_counts_only_if_it_is_at_least_one_percent_of_the_older_mean(mean: float) -> None:
    before = [mean, mean, mean]
    for share, word in ((0.009, "same"), (0.011, "better"), (-0.009, "same"), (-0.011, "worse")):
        after = [mean + abs(mean) * share] * 3
        assert compare_learning("c", "m", before, after, better="more").word == word, share
    for share, word in ((0.009, "same"), (0.011, "worse"), (-0.009, "same"), (-0.011, "better")):
        times = [abs(mean)] * 3
        assert compare_resource("c", "s", times, [each * (1 + share) for each in times]).word == word, share


def test_the_older_version_is_the_side_before_in_every_measure(tmp_path: Path) -> None:
    figures = {"theirs": {"cpu_s": 1.0, "wall_s": 2.0, "peak_rss_mb": 3.0}}
    figures["ours"] = {name: 10 * number for name, number in figures["theirs"].items()}
    pairs = [{side: {"metric": "reward/mean", "better": "more", **figures[side]} for side in figures}] * 2
    folders = {side: [tmp_path / side / seed for seed in "01"] for side in figures}
    for side, reward in (("theirs", 5.0), ("ours", 7.0)):
        for folder in folders[side]:
            folder.mkdir(parents=True)
            (folder / "metrics.jsonl").write_text(f'{{"step": 1, "reward/mean": {reward}}}\n')
    found = list(compare("c", pairs, folders["theirs"], folders["ours"]))
    assert [(each.before, each.after) for each in found] == [(5, 7), (5, 7), (1, 10), (2, 20), (3, 30)]
    assert [each.word for each in found] == ["better"] * 2 + ["worse"] * 3


def test_what_a_case_computes_of_the_trained_model_is_compared_in_the_same_direction(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss/total": 1.0}\n')
    figures = {"metric": "loss/total", "better": "less", "cpu_s": 1.0, "wall_s": 1.0, "peak_rss_mb": 1.0}
    pairs = [
        {"theirs": {**figures, "judged": {"held out": before}}, "ours": {**figures, "judged": {"held out": after}}}
        for before, after in ((2.0, 2.5), (2.1, 2.7))
    ]
    first, *_ = compare("c", pairs, [tmp_path] * 2, [tmp_path] * 2)
    assert (first.name, first.before, first.after, first.word) == ("held out", 2.05, pytest.approx(2.6), "same")
    pairs[1]["ours"]["judged"] = {"held out": 2.6001}
    first, *_ = compare("c", pairs, [tmp_path] * 2, [tmp_path] * 2)
    assert first.word == "worse"


def test_the_loss_of_held_out_answers_is_that_of_their_tokens_alone(tmp_path: Path) -> None:
    """A model that gives every token the same probability has the logarithm of its vocabulary's size as its loss."""
    tokenizer = case_chat.make_tokenizer()
    model = make_llama()  # its vocabulary is larger, which changes nothing
    torch.nn.init.zeros_(model.lm_head.weight)
    model.save_pretrained(tmp_path)
    assert case_chat.held_out_loss(tmp_path, tokenizer) == pytest.approx(math.log(model.config.vocab_size))
    messages = [{"role": "user", "content": "1+2"}, {"role": "assistant", "content": "3"}]
    ids, is_answer = case_chat.marked_answers(messages, tokenizer)
    assert tokenizer.convert_ids_to_tokens(ids) == ["<user>", "1", "+", "2", "<end>", "<assistant>", "3", "<end>"]
    assert ids == tokenizer.apply_chat_template(messages, return_dict=False)
    assert is_answer == [False] * 6 + [True] * 2


def test_the_answers_to_single_prompts_are_those_of_transformers(tmp_path: Path) -> None:
    tokenizer = case_chat.make_tokenizer()
    model = make_llama()
    torch.nn.init.zeros_(model.lm_head.weight[len(tokenizer) :])  # tokens that the tokenizer has not are never chosen
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(tmp_path)
    first = [{"role": "user", "content": "1+2"}]
    second = [*first, {"role": "assistant", "content": "3"}, {"role": "user", "content": "+14"}]
    expected = []
    for messages in (first, second):
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")["input_ids"]
        output = model.generate(prompt, do_sample=False, max_new_tokens=case_chat.LONGEST_ANSWER)
        expected.append(tokenizer.decode(output[0, prompt.shape[1] :], skip_special_tokens=True))
    assert expected[0] != expected[1]
    assert case_chat.greedy_answers(tmp_path, tokenizer, [first, second]) == expected


def test_a_version_that_takes_less_time_is_called_better() -> None:
    assert compare_resource("c", "time", [1.0, 1.1, 0.9], [0.5, 0.56, 0.44]).word == "better"
    assert compare_resource("c", "time", [1.0, 1.1, 0.9], [2.0, 2.2, 1.8]).word == "worse"


def test_learning_is_measured_by_the_means_of_the_last_fifth_and_of_all_steps() -> None:
    series = Series(np.arange(10), np.array([0.0, 1, 2, 3, 4, 5, 6, 7, 8, math.nan]))
    assert learning_figures("r", series) == {"r, last fifth": 8.0, "r, whole run": 4.0}
