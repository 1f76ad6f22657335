"""Trainings of which rounds are scattered or whole, for the tests of this folder."""

from __future__ import annotations

from typing import Any

import torch

from rlcore.config import structure
from rlcore.settings import TrainConfig
from rlcore.training import gather_round
from rlcore.training.build import assemble
from rlcore.training.inputs import Inputs
from rlcore_testing.small import EOS, make_llama, make_tokenizer

ENDS = [EOS, 3, 7, 11, 19]
PROMPTS = ["a", "bcd", "c", "defg", "e", "fg", "g"]


def score(outputs: list[str], prompts: list[str]) -> list[float | None]:
    """Return half the length of an output, less its number of a; None after one of the prompts."""
    return [
        None if prompt == "g" else len(output) * 0.5 - output.count("a")
        for prompt, output in zip(prompts, outputs, strict=True)
    ]


def learned(folder: str, *, trainer: dict[str, Any], whole: bool, steps: int = 3) -> dict[str, Any]:
    """Train, and return the metrics of each step, all weights and the bytes of the exchanges, of rank 0.

    Args:
        folder: where runs are.
        trainer: its options.
        whole: whether every process receives whole rounds.
        steps: so many steps.
    """
    received = _counting()
    model = make_llama()
    settings = {
        "trainer": {"optimizer": {"lr": 1e-2, "eps": 1e-3}, **trainer},  # so that Adam does not amplify rounding
        "gen": {"max_new_tokens": 6, "eos_token_ids": ENDS},
        "run": {"root": folder, "steps": steps},
        "loggers": [],
    }
    given = Inputs(model=model, tokenizer=make_tokenizer(), prompts=PROMPTS, reward_fn=score)
    built = assemble(structure(TrainConfig, settings, where="test"), given, "test").trainer
    if whole:
        (built if hasattr(built, "_gather") else built.rounds)._gather = gather_round
    course = built.steps()
    metrics = [dict(next(course)) for _ in range(steps)]
    seen: list[Any] = [
        {name: value for name, value in each.items() if not name.startswith("time/")} for each in metrics
    ]
    weights = torch.cat([p.detach().flatten() for p in built.policy().module.parameters()])
    return {"metrics": seen, "weights": weights.tolist(), "received": received}


def _counting() -> dict[str, int]:
    """Count the bytes of arrays that a process receives from now on, itself included, by the operation."""
    received: dict[str, int] = {}

    def counted(name: str) -> None:
        plain = getattr(torch.distributed, name)

        def call(*arguments: Any, **options: Any) -> Any:
            arrays = arguments[0] if isinstance(arguments[0], list) else [arguments[0]]
            received[name] = received.get(name, 0) + sum(each.nbytes for each in arrays)
            return plain(*arguments, **options)

        setattr(torch.distributed, name, call)

    for name in ("all_gather", "all_to_all_single"):
        counted(name)
    return received
