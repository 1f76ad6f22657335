"""Tests of unusable rewards: they raise an error that names the reward function."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import sys

import numpy as np
import pytest
import torch
from reward_asking import ask, by_label, by_output

from rlcore.errors import DataError, RewardError
from rlcore.rewards.combine import Rewards
from rlcore.types import Prompt


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
            r"^reward function 'raises' \(step 3, batch of 3\) raised KeyError: 'lost' at .*test_bad_rewards\.py:\d+$",
        ),
        (raises_later, r"reward function 'raises_later' \(step 3, batch of 3\) raised ValueError: too late at .*:\d+$"),
        (lambda samples: [1, 2], r"returned 2 values for 3 samples; return 3 numbers, one per sample"),
        (lambda samples: [1, math.nan, 2], r"'reward' .* returned nan for sample 1, which is not a finite.*; return"),
        (lambda samples: [1, 2, -math.inf], r"returned -inf for sample 2, which is not a finite number"),
        (lambda samples: [10**400, 2, 3], r"returned 1000.* for sample 0, which is not a finite number"),
        (lambda samples: ["1", 2, 3], r"returned '1' for sample 0, which is a str, not a number"),
        (lambda samples: [1, [0, "x", 0], 3], r"returned 'x' for sample 1, token 1, which is a str"),
        (lambda samples: [1, [0, math.nan, 0], 3], r"returned nan for sample 1, token 1"),
        (lambda samples: [1, [1, 2], 3], r"returned 2 dense rewards for sample 1, but the policy chose 3 tokens.*EOS"),
        (lambda samples: torch.zeros(3, 1), r"returned 1 dense rewards for sample 0, but the policy chose 2 tokens"),
        (lambda samples: None, r"returned None \(NoneType\); return 3 numbers"),
        (lambda samples: 1.0, r"returned 1\.0 \(float\)"),
        (lambda samples: torch.tensor(1.0), r"returned 1\.0 \(float\)"),
        (lambda samples: "abc", r"returned 'abc' \(str\)"),
        (lambda samples: {"reward": [1, 2, 3]}, r"returned \{'reward': \[1, 2, 3\]\} \(dict\)"),
        (lambda samples: [1, {"a": 1}, 2], r"returned \{'a': 1\} for sample 1, which is a dict, not a number"),
        (
            lambda samples, lable: [],
            r"has an unknown parameter 'lable'; did you mean 'label'\? Known parameters: samples, p",
        ),
        (lambda completion: [], r"has an unknown parameter 'completion'; did you mean 'outputs'\?"),
        (lambda completions, output: [], r"has an unknown parameter 'output'"),
        (lambda completions, outputs: [], r"has an unknown parameter 'completions'; did you mean 'outputs'\?"),
        (lambda lable: [], r"unknown parameter 'lable'; did you mean 'label'"),
        (lambda samples, zzz: [], r"has an unknown parameter 'zzz'; known parameters: samples, prompts, outputs"),
        (lambda a, b, c, d, /: [], r"has an unknown parameter 'd'"),
    ],
)
def test_an_unusable_reward_is_an_error_that_names_its_function(reward_fn, message):
    with pytest.raises(RewardError, match=message):
        ask(reward_fn)


def test_an_error_of_a_reward_function_is_the_cause_of_the_reward_error():
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
        (3, r"reward_fn: 3 \(int\) is not callable; a reward is a function"),
        ([], r"reward_fn is empty"),
        ({}, r"reward_fn is empty"),
        ([by_output, None], r"the weight of 'by_output' is None; it must be a finite number"),
        ([(by_output, math.nan)], r"the weight of 'by_output' is nan"),
        ([(by_output, True)], r"the weight of 'by_output' is True"),
        ([{"fn": by_output, "wieght": 1}], r"reward_fn\[0\]: 'wieght': .*allowed keys are 'fn', 'weight' and 'name'"),
        ([{"fn": "math:floor", "low": 1}], r"only a registered reward has options"),
        ({"good": {"weight": 1}}, r"reward_fn\.good: .* needs the key 'fn'"),
        (
            {"function": "count", "api_key": "s3cret"},
            r"^reward_fn: \{'function': \.\.\., 'api_key': \.\.\.\} needs the key 'fn'",
        ),
        (
            [["math:floor", {"api_key": 1}]],
            r"^reward_fn: \['math:floor', \{'api_key': \.\.\.\}\] \(list\) is not callable",
        ),
        ("no_such_module:f", r"reward_fn = 'no_such_module:f': importing 'no_such_module' failed"),
        ("math:pi", r"reward_fn: 'math:pi' \(float\) is not callable"),
    ],
)
def test_rewards_that_are_none_are_refused(reward_fn, message):
    with pytest.raises(DataError, match=message):
        Rewards.build(reward_fn)


def leave(samples):
    sys.exit(0)


async def leave_later(samples):
    await asyncio.sleep(0)
    sys.exit(0)


@pytest.mark.parametrize("reward_fn", [leave, leave_later])
def test_a_function_that_calls_sys_exit_is_an_error_that_names_it(reward_fn):
    with pytest.raises(
        RewardError, match=rf"function '{reward_fn.__name__}' .* raised SystemExit: 0 at .*bad_rewards.py"
    ):
        ask(reward_fn)
    assert ask(by_label).totals == [1, 2, 0]


def parse(samples):
    return [float(json.loads(sample)) for sample in samples]


def test_the_place_of_an_error_is_the_users_line_and_not_one_of_the_library_that_it_calls():
    with pytest.raises(RewardError, match=r"function 'parse' .* raised JSONDecodeError: .* at .*bad_rewards.py:\d+"):
        ask(parse)


class Foreign(BaseException):
    pass


def leave_between(samples):
    yield 1.0
    sys.exit(0)


def raise_foreign(samples):
    raise Foreign


@pytest.mark.parametrize(
    ("reward_fn", "message"),
    [(leave_between, r"reading it raised SystemExit: 0"), (raise_foreign, r"raised Foreign at .*bad_rewards.py")],
)
def test_no_exception_of_a_function_but_an_interrupt_ends_the_process(reward_fn, message):
    with pytest.raises(RewardError, match=rf"function '{reward_fn.__name__}' .*{message}"):
        ask(reward_fn)


@pytest.mark.parametrize("name", ["samples", "prompts", "outputs", "tokenizer"])
def test_columns_of_a_name_that_is_taken_are_refused(name):
    with pytest.raises(DataError, match=rf"a column '{name}', which is the name of another .*; rename the column"):
        ask(by_output, prompts=[Prompt("a", (0,), {name: 1})], outputs=["x"], lengths=[1])


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no text")


def raises_mute(samples):
    raise Mute


def half_done(samples):
    yield 1
    raise KeyError("lost")


@pytest.mark.parametrize(
    ("reward_fn", "message"),
    [
        (
            lambda samples: torch.zeros(3, device="meta"),
            r"returned a torch\.strided tensor on meta, whose numbers cannot",
        ),
        (
            lambda samples: torch.eye(3).to_sparse()[0],
            r"returned a torch\.sparse_coo tensor on cpu, whose numbers cannot",
        ),
        (lambda samples: [torch.zeros(2, device="meta"), 1, 2], r"tensor on meta for sample 0, whose numbers"),
        (lambda samples: np.array([1, Unprintable(), 2], dtype=object), r"returned <Unprintable that .*> for sample 1"),
        (lambda samples: [1, 2, 1j], r"returned 1j for sample 2, which is a complex, not a number"),
        (lambda samples: Unprintable(), r"returned <Unprintable that cannot be printed> \(Unprintable\)"),
        (
            lambda samples: [1, 2, 16**5000],
            r"returned <int that cannot be printed> for sample 2, which is not a finite",
        ),
        (lambda samples: itertools.count(), r"returned more than 3 values for 3 samples"),
        (half_done, r"returned <generator .*>, and reading it raised KeyError: 'lost'"),
        (raises_mute, r"raised Mute at .*test_bad_rewards\.py:\d+$"),
        (
            [(by_output, 1e308), (by_output, 1e308)],
            r"step 3, batch of 3: the weighted sum .* sample 0 is inf",
        ),
    ],
)
def test_unreadable_or_unprintable_scores_are_an_error_that_names_the_function(reward_fn, message):
    with pytest.raises(RewardError, match=message):
        ask(reward_fn)


def in_doubles(samples):
    torch.set_default_dtype(torch.float64)
    return [1, 2, 3]


async def in_doubles_later(samples):
    return in_doubles(samples)


def on_meta(samples):
    torch.set_default_device("meta")
    raise KeyError("lost")


def test_a_reward_that_changes_the_defaults_of_torch_is_an_error():
    for reward_fn in (in_doubles, in_doubles_later):
        with pytest.raises(
            RewardError, match=rf"'{reward_fn.__name__}' .* changed the defaults of torch to torch.float64"
        ):
            ask(reward_fn)
        assert torch.get_default_dtype() == torch.float32
    with pytest.raises(RewardError, match="raised KeyError"):
        ask(on_meta)
    assert torch.get_default_device().type == "cpu"
