"""Tests of reward functions: they receive what their signature names; their results are parsed, weighted and added."""

from __future__ import annotations

import asyncio
import functools
import threading
from decimal import Decimal

import numpy as np
import pytest
import torch
from reward_asking import ARGUMENTS, OUTPUTS, PROMPTS, ask, by_label, by_output

from rlcore.rewards.chosen_rewards import choose_rewards
from rlcore.rewards.combine import RewardBatch, Rewards
from rlcore.rewards.values import call_metric


class Scorer:
    def __init__(self, offset):
        self.offset = offset

    def __call__(self, outputs, tokenizer):
        assert tokenizer == "the tokenizer"
        return [len(output) + self.offset for output in outputs]

    def method(self, outputs):
        return [self.offset for _ in outputs]


class AsyncScorer:
    async def __call__(self, outputs):
        return [len(output) for output in outputs]


@pytest.mark.parametrize(
    ("reward_fn", "expected"),
    [
        (by_output, [1, 2, 0]),
        (by_label, [1, 2, 0]),
        (lambda samples: [len(s) for s in samples], [2, 3, 1]),
        (lambda texts: [len(s) for s in texts], [2, 3, 1]),
        (lambda texts, label: [len(s) * (n or 0) for s, n in zip(texts, label, strict=True)], [2, 6, 0]),
        (lambda texts, /: [len(s) for s in texts], [2, 3, 1]),
        (lambda s, p, o, /: [len(x) for x in o], [1, 2, 0]),
        (lambda s, /, **rest: [len(x) for x in rest["outputs"]], [1, 2, 0]),
        (lambda samples, **_: [1] * len(samples), [1, 1, 1]),
        (lambda **given: [len(given["prompts"])] * 3, [3, 3, 3]),
        (lambda *, outputs, unknown=5: [unknown] * len(outputs), [5, 5, 5]),
        (Scorer(1), [2, 3, 1]),
        (Scorer(4).method, [4, 4, 4]),
        (AsyncScorer(), [1, 2, 0]),
        (functools.partial(lambda outputs, scale: [scale * len(o) for o in outputs], scale=10), [10, 20, 0]),
        (lambda outputs: by_label([3, 4, 5], **dict.fromkeys(ARGUMENTS, 0)), [3, 4, 5]),
    ],
)
def test_reward_functions_receive_the_arguments_of_their_signature(reward_fn, expected):
    batch = ask(reward_fn)
    assert batch.totals == expected
    assert batch.dense is None


@pytest.mark.parametrize(
    "answer",
    [
        [1, 2.5, 0], (1, 2.5, 0), np.array([1, 2.5, 0], np.float16), torch.tensor([1, 2.5, 0], requires_grad=True),
        [torch.tensor(1), np.float32(2.5), np.array(0)], [True, Decimal("2.5"), False], iter([1, 2.5, 0]),
        {1: 1, 2: 2.5, 3: 0}.values(), [1, 2.5, None],
    ],
)  # fmt: skip
def test_scores_of_every_numeric_type_are_read(answer):
    batch = ask(lambda samples: answer)
    assert batch.totals == [1.0, 2.5, 0.0]
    assert all(type(total) is float for total in batch.totals)


@pytest.mark.parametrize("timeout_s", [None, 60.0])
def test_reward_and_metric_functions_run_without_gradients(timeout_s):
    modes = []

    def plain(outputs):
        modes.append(torch.is_grad_enabled())
        return [0.0] * len(outputs)

    async def late(outputs):
        await asyncio.sleep(0)
        return plain(outputs)

    rewards = Rewards.load(choose_rewards([plain, late]), timeout_s=timeout_s)
    rewards(PROMPTS, OUTPUTS, tokenizer=None, output_tokens=[[1]] * len(OUTPUTS))
    call_metric(lambda outputs: {"zero": plain(outputs)}, PROMPTS, OUTPUTS, None, timeout_s=timeout_s)
    assert torch.is_grad_enabled()
    assert modes == [False] * 3


def test_a_score_of_none_does_not_count_for_a_sample():
    batch = ask([lambda samples: [1, None, None], lambda samples: [None, 2, None]])
    assert batch.totals == [1, 2, 0]
    assert batch.by_name == {"reward": [1, None, None], "reward_2": [None, 2, None]}


def test_dense_rewards_are_one_for_each_chosen_token():
    batch = ask(lambda samples: [[1, 2], np.array([0, 0.5, 0]), torch.tensor([3.0])])
    assert batch.dense == [[1, 2], [0, 0.5, 0], [3]]
    assert batch.totals == [3, 0.5, 3]


def test_one_number_a_sample_goes_to_the_last_chosen_token_beside_dense_rewards():
    dense = lambda samples: [[1, 2], None, [3]]  # noqa: E731
    batch = ask([(dense, 2), (lambda samples: [10, 20, 30], 0.5)])
    assert batch.dense == [[2, 9], [0, 0, 10], [21]]
    assert batch.totals == [sum(row) for row in batch.dense] == [11, 10, 21]


@pytest.mark.parametrize(
    ("reward_fn", "names", "totals"),
    [
        ([by_output, by_label], ("by_output", "by_label"), [2, 4, 0]),
        ([(by_output, 0.5), by_label], ("by_output", "by_label"), [1.5, 3, 0]),
        ((by_output, 0.5), ("by_output",), [0.5, 1, 0]),
        ([{"fn": by_output, "weight": -1}], ("by_output",), [-1, -2, 0]),
        ({"fn": by_output, "weight": 2, "name": "length"}, ("length",), [2, 4, 0]),
        ({"length": by_output, "label": (by_label, 2)}, ("length", "label"), [3, 6, 0]),
        ({"length": {"fn": by_output, "weight": 3}}, ("length",), [3, 6, 0]),
        ([by_output, by_output], ("by_output", "by_output_2"), [2, 4, 0]),
        ([(by_output, 1), (by_output, 2), (by_output, 4)], ("by_output", "by_output_2", "by_output_3"), [7, 14, 0]),
        (
            [{"fn": by_output, "name": "by_label"}, by_label, {"fn": by_output, "name": "by_label_2"}],
            ("by_label", "by_label_2", "by_label_2_2"),
            [3, 6, 0],
        ),
        ([Scorer(0), functools.partial(by_output)], ("Scorer", "by_output"), [2, 4, 0]),
    ],
)
def test_scores_of_several_functions_are_weighted_and_added(reward_fn, names, totals):
    rewards = Rewards.build(reward_fn)
    assert rewards.names == names
    batch = ask(reward_fn)
    assert batch.totals == totals
    assert tuple(batch.by_name) == names


def test_a_reward_function_may_be_named_by_module_and_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_rewards.py").write_text(
        "def lengths(outputs):\n    return [len(o) for o in outputs]\n"
        "class Group:\n    fixed = staticmethod(lambda outputs: [1, 1, 1])\n"
    )
    rewards = Rewards.build(["my_rewards:lengths", ["my_rewards:Group.fixed", 2]])
    assert rewards.names == ("lengths", "fixed")
    assert ask(["my_rewards:lengths", ["my_rewards:Group.fixed", 2]]).totals == [3, 4, 2]


def test_coroutines_run_at_the_same_time():
    both = threading.Barrier(2)

    async def meet(outputs):
        await asyncio.to_thread(both.wait, 5)
        return [1 for _ in outputs]

    assert ask([meet, meet]).totals == [2, 2, 2]


def test_each_coroutine_gets_its_own_answer_whichever_ends_first():
    ended, is_over = [], asyncio.Event()

    async def slow(outputs):
        await is_over.wait()
        ended.append("slow")
        return [1.0, 2.0, 3.0]

    async def fast(outputs):
        ended.append("fast")
        is_over.set()
        return [10.0, 20.0, 30.0]

    batch = ask({"slow": slow, "plain": by_output, "fast": fast})
    assert ended == ["fast", "slow"]
    assert batch.by_name == {"slow": [1, 2, 3], "plain": [1, 2, 0], "fast": [10, 20, 30]}


def test_coroutines_are_awaited_while_a_loop_runs_already():
    async def notebook():
        return ask(by_label).totals

    assert asyncio.run(notebook()) == [1, 2, 0]


def test_coroutines_keep_their_event_loop_from_call_to_call():
    loops = []

    async def remember(outputs):
        loops.append(asyncio.get_running_loop())
        return [0 for _ in outputs]

    ask(remember)
    ask(remember)
    assert loops[0] is loops[1]
    assert not loops[0].is_closed()


def test_no_function_can_change_what_another_reads():
    def spoil(samples, prompts, outputs, label):
        for given in (samples, prompts, outputs, label):
            given.clear()
        return [0, 0, 0]

    outputs = list(OUTPUTS)
    assert ask([spoil, by_output], outputs=outputs).totals == [1, 2, 0]
    assert outputs == OUTPUTS


def test_dense_rewards_can_be_written_from_the_ids_behind_the_output():
    batch = ask(lambda output_tokens: [[float(token) for token in tokens] for tokens in output_tokens])
    assert batch.dense == [[0.0, 1.0], [0.0, 1.0, 2.0], [0.0]]
    assert batch.totals == [1.0, 3.0, 0.0]


def test_scores_beside_dense_rewards_are_placed_on_the_last_token() -> None:
    scores = RewardBatch([2.0, -1.0], None, {"a": [2.0, -1.0]})
    dense = RewardBatch([1.5], [[0.5, 1.0]], {"b": [1.5]})
    found = RewardBatch.together([([2, 0], scores), ([1], dense)], [3, 2, 1])
    assert found.totals == [-1.0, 1.5, 2.0]
    assert found.dense == [[0.0, 0.0, -1.0], [0.5, 1.0], [2.0]]
    assert found.by_name == {"a": [-1.0, None, 2.0], "b": [None, 1.5, None]}
