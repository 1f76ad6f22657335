from __future__ import annotations

import asyncio
import functools
import math
import threading
import types
from decimal import Decimal

import numpy as np
import pytest
import torch

from rlcore import choosing, registry
from rlcore.components import Component
from rlcore.config import config, option
from rlcore.errors import ConfigError, DataError, PluginError, RewardError, UnknownReward
from rlcore.rewards import Rewards, call_metric
from rlcore.types import Prompt

PROMPTS = [Prompt("a", (0,), {"label": 1}), Prompt("b", (1,), {"label": 2}), Prompt("c", (2,), {"label": None})]
OUTPUTS = ["x", "yy", ""]
LENGTHS = [2, 3, 1]


def ask(reward_fn, *, prompts=PROMPTS, outputs=OUTPUTS, lengths=LENGTHS, where="step 3"):
    tokens = [list(range(length)) for length in lengths]
    return Rewards.build(reward_fn)(prompts, outputs, tokenizer="the tokenizer", output_tokens=tokens, where=where)


def by_output(samples, prompts, outputs):
    assert samples == [p + o for p, o in zip(prompts, outputs, strict=True)]
    return [len(output) for output in outputs]


async def by_label(label, **rest):
    await asyncio.sleep(0)
    assert sorted(rest) == ["output_tokens", "outputs", "prompts", "samples", "tokenizer"]
    return [value or 0 for value in label]


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
        (lambda outputs: by_label([3, 4, 5], samples=0, prompts=0, outputs=0, output_tokens=0, tokenizer=0), [3, 4, 5]),
    ],
)
def test_functions_get_what_their_signature_takes(reward_fn, expected):
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
def test_numbers_of_every_make_are_read(answer):
    batch = ask(lambda samples: answer)
    assert batch.totals == [1.0, 2.5, 0.0]
    assert all(type(total) is float for total in batch.totals)


def test_none_says_nothing_of_a_sample():
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
        ([Scorer(0), functools.partial(by_output)], ("Scorer", "by_output"), [2, 4, 0]),
    ],
)
def test_several_functions_are_weighed_and_added(reward_fn, names, totals):
    rewards = Rewards.build(reward_fn)
    assert rewards.names == names
    batch = ask(reward_fn)
    assert batch.totals == totals
    assert tuple(batch.by_name) == names


def test_functions_are_found_by_reference(tmp_path, monkeypatch):
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


def raises(samples):
    raise KeyError("lost")


async def raises_later(samples):
    await asyncio.sleep(0)
    raise ValueError("too late")


@pytest.mark.parametrize(
    ("reward_fn", "message"),
    [
        (
            raises,
            r"^reward function 'raises' \(step 3, batch of 3\) raised KeyError: 'lost' at .*test_rewards\.py:\d+$",
        ),
        (raises_later, r"reward function 'raises_later' \(step 3, batch of 3\) raised ValueError: too late at .*:\d+$"),
        (lambda samples: [1, 2], r"returned 2 values for 3 samples; return 3 numbers, one a sample"),
        (lambda samples: [1, math.nan, 2], r"'reward' .* gave sample 1 nan, which is not a finite number; return"),
        (lambda samples: [1, 2, -math.inf], r"gave sample 2 -inf, which is not a finite number"),
        (lambda samples: [10**400, 2, 3], r"gave sample 0 1000.*, which is not a finite number"),
        (lambda samples: ["1", 2, 3], r"gave sample 0 '1', which is a str, not a number"),
        (lambda samples: [1, [0, "x", 0], 3], r"gave sample 1, token 1 'x', which is a str"),
        (lambda samples: [1, [0, math.nan, 0], 3], r"gave sample 1, token 1 nan"),
        (lambda samples: [1, [1, 2], 3], r"gave sample 1 2 dense rewards, but the policy chose 3 tokens there; .*EOS"),
        (lambda samples: torch.zeros(3, 1), r"gave sample 0 1 dense rewards, but the policy chose 2 tokens"),
        (lambda samples: None, r"returned None \(NoneType\); return 3 numbers"),
        (lambda samples: 1.0, r"returned 1\.0 \(float\)"),
        (lambda samples: torch.tensor(1.0), r"returned 1\.0 \(float\)"),
        (lambda samples: "abc", r"returned 'abc' \(str\)"),
        (lambda samples: {"reward": [1, 2, 3]}, r"returned \{'reward': \[1, 2, 3\]\} \(dict\)"),
        (lambda samples: [1, {"a": 1}, 2], r"gave sample 1 \{'a': 1\}, which is a dict, not a number"),
        (
            lambda samples, lable: [],
            r"asks for 'lable', which is not there; did you mean 'label'\? There are samples, p",
        ),
        (lambda completions: [], r"asks for 'completions', which is not there; did you mean 'outputs'\?"),
        (lambda lable: [], r"asks for 'lable', .*did you mean 'label'"),
        (lambda samples, zzz: [], r"asks for 'zzz', which is not there; there are samples, prompts, outputs, token"),
        (lambda a, b, c, d, /: [], r"asks for 'd', which is not there"),
    ],
)
def test_what_cannot_be_used_is_blamed_on_its_function(reward_fn, message):
    with pytest.raises(RewardError, match=message):
        ask(reward_fn)


def test_the_functions_own_error_is_the_cause():
    for reward_fn, kind in ((raises, KeyError), (raises_later, ValueError)):
        with pytest.raises(RewardError) as caught:
            ask([by_label, reward_fn])
        assert isinstance(caught.value.__cause__, kind)


@pytest.mark.filterwarnings("error")
def test_a_coroutine_is_not_left_behind_when_another_function_raises():
    with pytest.raises(RewardError, match="'raises'"):
        ask([by_label, raises])


@pytest.mark.parametrize(
    ("reward_fn", "message"),
    [
        (3, r"reward_fn: 3 \(int\) cannot be called; a reward is a function"),
        ([], r"reward_fn is empty"),
        ({}, r"reward_fn is empty"),
        ([by_output, None], r"the weight of 'by_output' is None; it must be a finite number"),
        ([(by_output, math.nan)], r"the weight of 'by_output' is nan"),
        ([(by_output, True)], r"the weight of 'by_output' is True"),
        ([{"fn": by_output, "wieght": 1}], r"reward_fn\[0\]: 'wieght': .*'weight' and 'name', nothing else"),
        ([{"fn": "math:floor", "low": 1}], r"only a registered reward may have options"),
        ({"good": {"weight": 1}}, r"reward_fn\.good: .* must have 'fn'"),
        ("no_such_module:f", r"reward_fn = 'no_such_module:f': importing 'no_such_module' failed"),
        ("math:pi", r"reward_fn: 'math:pi' \(float\) cannot be called"),
    ],
)
def test_rewards_that_are_none_are_refused(reward_fn, message):
    with pytest.raises(DataError, match=message):
        Rewards.build(reward_fn)


def test_a_function_that_ends_the_program_ends_it():
    async def leave(samples):
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        ask(leave)
    assert ask(by_label).totals == [1, 2, 0]


@config
class LengthConfig:
    """How lengths are counted."""

    per: float = option(1.0, "characters that are worth 1", gt=0)


@config
class ClashingConfig:
    """Options that no mapping could set."""

    weight: float = option(1.0, "what every reward has")


def make_lengths(config):
    return lambda outputs: [len(output) / config.per for output in outputs]


@pytest.fixture
def registered(monkeypatch):
    """Register rewards of a dist called acme: one without options, one with, one with options that clash."""
    rewards = [
        Component("rewards", "length", "acme", "0.1", "", by_output, None),
        Component("rewards", "scaled", "acme", "0.1", "", make_lengths, LengthConfig),
        Component("rewards", "clashing", "acme", "0.1", "", make_lengths, ClashingConfig),
    ]
    found = types.SimpleNamespace(rewards=registry.Registry("rewards", rewards, []))
    monkeypatch.setattr(choosing, "registries", lambda: found)


@pytest.mark.usefixtures("registered")
def test_a_registered_reward_is_found_by_its_short_and_its_full_name():
    for name in ("length", "acme:length"):
        assert Rewards.build(name).names == (name,)
        assert ask([name, {"fn": name, "weight": 2}]).totals == [3, 6, 0]


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("reward_fn", "name", "totals"),
    [
        ("scaled", "scaled", [1, 2, 0]),
        ({"fn": "scaled", "per": 0.5}, "scaled", [2, 4, 0]),
        ([{"fn": "acme:scaled", "weight": 3, "per": 2.0}], "acme:scaled", [1.5, 3, 0]),
        ({"half": {"fn": "scaled", "per": 2.0}}, "half", [0.5, 1, 0]),
        ([{"fn": "scaled", "name": "long", "per": 0.25}], "long", [4, 8, 0]),
        (("scaled", 2), "scaled", [2, 4, 0]),
    ],
)
def test_a_registered_reward_with_options_is_what_its_target_returns_for_them(reward_fn, name, totals):
    assert Rewards.build(reward_fn).names == (name,)
    assert ask(reward_fn).totals == totals


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("reward_fn", "error", "message"),
    [
        ({"fn": "scaled", "pre": 2.0}, ConfigError, r"reward_fn\.pre = 2\.0: .*'per'"),
        ([{"fn": "scaled", "per": -1.0}], ConfigError, r"reward_fn\[0\]\.per = -1\.0: must be greater than 0"),
        ({"a": {"fn": "scaled", "per": "2"}}, ConfigError, r"reward_fn\.a\.per = '2'"),
        ({"fn": "length", "per": 2.0}, ConfigError, r"reward_fn\.per: 'length' has no options"),
        ("clashing", PluginError, r"reward 'clashing' \(acme 0\.1\) has an option 'weight', which nobody could set"),
    ],
)
def test_options_of_a_registered_reward_are_checked(reward_fn, error, message):
    with pytest.raises(error, match=message):
        Rewards.build(reward_fn)


def test_an_unknown_registered_reward_is_named():
    with pytest.raises(UnknownReward, match="no reward is called 'kindness'"):
        Rewards.build("kindness")


@pytest.mark.parametrize("name", ["samples", "prompts", "outputs", "tokenizer"])
def test_columns_of_a_name_that_is_taken_are_refused(name):
    with pytest.raises(DataError, match=rf"a column '{name}', a name under which .*; rename the column"):
        ask(by_output, prompts=[Prompt("a", (0,), {name: 1})], outputs=["x"], lengths=[1])


def test_metrics_are_read_like_rewards():
    def metric_fn(outputs, label):
        return {"length": torch.tensor([len(o) for o in outputs]), "label": label}

    expected = {"length": [1, 2, 0], "label": [1, 2, None]}
    assert call_metric(metric_fn, PROMPTS, OUTPUTS, tokenizer=None) == expected


def test_metrics_may_come_from_a_coroutine_or_a_reference(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_metrics.py").write_text("async def count(outputs):\n    return {'n': [len(o) for o in outputs]}\n")
    assert call_metric("my_metrics:count", PROMPTS, OUTPUTS, None) == {"n": [1, 2, 0]}


@pytest.mark.parametrize(
    ("metric_fn", "message"),
    [
        (
            lambda samples: [1, 2, 3],
            r"metric function 'metric' \(step 2, batch of 3\) returned \[1, 2, 3\]; return a dict",
        ),
        (lambda samples: {"a": [1, 2]}, r"metric function 'metric', metric 'a' .* returned 2 values for 3 samples"),
        (lambda samples: {"a": [1, math.nan, 2]}, r"metric 'a' .* gave sample 1 nan"),
        (lambda samples: {3: [1, 2, 3]}, r"named a metric 3 \(int\)"),
        (lambda samples: 1 / 0, r"raised ZeroDivisionError: division by zero"),
    ],
)
def test_metrics_that_cannot_be_used_are_blamed_on_their_function(metric_fn, message):
    with pytest.raises(RewardError, match=message):
        call_metric(metric_fn, PROMPTS, OUTPUTS, None, where="step 2")


def test_a_metric_name_without_a_module_is_refused():
    with pytest.raises(DataError, match=r"metric_fn = 'accuracy': is not of the form 'module:function'"):
        call_metric("accuracy", PROMPTS, OUTPUTS, None)


def test_dense_rewards_can_be_written_from_the_ids_behind_the_output():
    batch = ask(lambda output_tokens: [[float(token) for token in tokens] for tokens in output_tokens])
    assert batch.dense == [[0.0, 1.0], [0.0, 1.0, 2.0], [0.0]]
    assert batch.totals == [1.0, 3.0, 0.0]
