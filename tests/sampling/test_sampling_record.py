"""Tests of the sampling record: tokens and columns are returned in prompt order, whatever the write interval."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rlcore.types import Prompt
from rlcore_transformers.sampling import record
from rlcore_transformers.sampling.record import Record, SampledTokens

PROMPTS = (Prompt("ab", (7, 8)), Prompt("c", (9,)))


def long(*numbers: int) -> Tensor:
    return torch.tensor(numbers)


@pytest.fixture(params=[1, 2, 64])
def settle_every(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "SETTLE_EVERY", request.param)


@pytest.mark.usefixtures("settle_every")
def test_sampled_tokens_follow_their_prompts_in_the_order_of_the_prompts() -> None:
    """The second prompt runs in row 0; it ends at its second token, and its later samples are discarded."""
    written = Record(2, 3, torch.device("cpu"), ())
    rows, said = long(1, 0), torch.empty(2)
    steps = [
        (long(4, 3), [True, True], [False, False], [-0.5, -1.0]),
        (long(2, 5), [True, True], [True, False], [-0.25, -2.0]),
        (long(6, 1), [False, True], [False, True], [-9.0, -3.0]),
    ]
    for at, (tokens, live, ended, logprobs) in enumerate(steps):
        said.copy_(torch.tensor(logprobs))  # in the same tensor as before, like a decoder with static outputs
        written.write(rows, torch.tensor(live), long(at, at), SampledTokens(tokens, {"logprobs": said}))
        written.end(rows, torch.tensor(ended))
    assert written.chosen(0, 0, 3) == [3, 5, 1]
    batch = written.trajectories(PROMPTS, 0)
    assert batch.tokens.tolist() == [[7, 8, 3, 5, 1], [9, 4, 2, 0, 0]]
    assert batch.mask.tolist() == [[True] * 5, [True] * 3 + [False] * 2]
    assert batch.action_mask.tolist() == [[False, False, True, True, True], [False, True, True, False, False]]
    assert batch.ended.tolist() == [True, True]
    assert batch["logprobs"].tolist() == [[0, 0, -1, -2, -3], [0, -0.5, -0.25, 0, 0]]


@pytest.mark.usefixtures("settle_every")
def test_a_column_that_only_some_steps_have_is_zero_elsewhere() -> None:
    written = Record(1, 3, torch.device("cpu"), ("logprobs",))
    live, row = torch.tensor([True]), long(0)
    for at, columns in enumerate([{"values": 4.0}, {"logprobs": -1.0, "values": 5.0}, {"logprobs": -2.0}]):
        sampled = SampledTokens(long(at), {name: torch.tensor([said]) for name, said in columns.items()})
        written.write(row, live, long(at), sampled)
    batch = written.trajectories(PROMPTS[1:], 0)
    assert batch["logprobs"].tolist() == [[0, 0, -1, -2]]
    assert batch["values"].tolist() == [[0, 4, 5, 0]]
    assert batch.ended.tolist() == [False]
