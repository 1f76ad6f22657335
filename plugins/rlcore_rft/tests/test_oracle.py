"""The loss of RFT in plain torch, row by row, without padding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from held_laws import hold
from torch import Tensor

SMALL: dict[str, Any] = {"generations": 4, "prompts": 3, "start_percentile": 0.3, "end_percentile": 0.6}
VARIANTS: dict[str, dict[str, Any]] = {
    "two passes over a round": {**SMALL, "improve_steps": 2},
    "two rounds": {**SMALL, "improve_steps": 1},
}


def rft(run: Any) -> Iterator[tuple[Tensor, dict[str, Any]]]:
    """Yield the loss of each improve step, which is one optimizer step if the batch is large enough."""
    options, history = run.options, list[list[Any]]()
    num_improve, number = options["improve_steps"], 0
    for responses in run.rounds:
        history = [*history, responses][-options["history"] :]
        every = [each for round_ in history for each in round_]
        for k in range(min(num_improve, len(run.ends) - number)):
            rise = (options["end_percentile"] - options["start_percentile"]) * k / max(num_improve - 1, 1)
            limits = _limits(every, options["start_percentile"] + rise)
            chosen = {(x.tokens, x.action_mask): x for x in every if x.score >= limits[_prompt(x)]}
            loss = torch.cat([_losses(run, each) for each in chosen.values()]).mean()
            yield loss, {"loss/total": loss, "rft/unique": len(chosen)}
            number += 1


def _limits(responses: list[Any], percentile: float) -> dict[Any, float]:
    scores = [each.score for each in responses]
    found = {}
    for prompt in {_prompt(each) for each in responses}:
        own = sorted(each.score for each in responses if _prompt(each) == prompt)
        place = percentile * (len(own) - 1)
        low, high = own[int(place)], own[min(int(place) + 1, len(own) - 1)]
        limit = low + (place - int(place)) * (high - low)
        found[prompt] = max(min(limit, max(scores) - 1e-3), min(scores) + 1e-3)
    return found


def _prompt(response: Any) -> tuple[int, ...]:
    return tuple(token for token, own in zip(response.tokens, response.action_mask, strict=True) if not own)


def _losses(run: Any, row: Any) -> Tensor:
    logits = run.model(torch.tensor([row.tokens])).logits[0] / run.gen["temperature"]
    chosen = [t for t, own in enumerate(row.action_mask) if own]
    return torch.stack([-logits[t - 1].log_softmax(-1)[row.tokens[t]] for t in chosen])


def check(law: str, variant: str) -> None:
    hold("rlcore-rft", law, options={"rft": VARIANTS[variant]}, oracles={"rft": rft})


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_training_equals_an_independent_implementation(variant: str) -> None:
    check("it_equals_its_oracle", variant)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["two passes over a round"])
def test_two_processes_equal_an_independent_implementation(variant: str) -> None:
    check("two_processes_equal_the_oracle", variant)
