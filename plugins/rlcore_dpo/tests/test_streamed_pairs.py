"""Pairs of an iterable data set: read while the run trains, with the reference computed in every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from dpo_making import ROWS

import rlcore
from rlcore.errors import ConfigError
from rlcore_testing.small import make_gpt2, make_tokenizer

EQUAL = {"prompt": "a", "chosen": "b", "rejected": "b"}


def iterable(rows: list[dict[str, Any]]) -> Any:
    texts = [{key: row.get(key) for key in ("prompt", "chosen", "rejected")} for row in rows]
    return datasets.IterableDataset.from_generator(lambda: iter(texts))


def train(folder: Path, name: str, samples: Any, *, steps: int = 4, resume: str = "never", **options: Any) -> Any:
    trainer = {"name": "dpo", "batch_size": 4, "optimizer": {"lr": 1e-2}, **options}
    run = {"steps": steps, "root": str(folder), "name": name, "resume": resume}
    return rlcore.train(
        make_gpt2(), tokenizer=make_tokenizer(), samples=samples, trainer=trainer, run=run, loggers=[],
        checkpoint={"every": 2},
    )  # fmt: skip


def weights(result: Any) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in result.policy.module.parameters()])


def test_a_resumed_run_on_a_stream_equals_one_without_interruption(tmp_path: Path) -> None:
    rows = [EQUAL, *ROWS]
    whole = train(tmp_path, "whole", iterable(rows))
    train(tmp_path, "parts", iterable(rows), steps=2)
    parts = train(tmp_path, "parts", iterable(rows), resume="auto")
    assert torch.equal(weights(whole), weights(parts))


def test_one_batch_of_a_stream_trains_as_the_same_rows_in_memory(tmp_path: Path) -> None:
    steady = {"lr": 1e-2, "eps": 1e-3}  # with which Adam does not amplify rounding errors
    rows = iterable([EQUAL, *ROWS[:4]])  # whose lengths are not known before
    streamed = train(tmp_path, "streamed", rows, steps=1, optimizer=steady)
    whole = train(tmp_path, "whole", ROWS[:4], steps=1, beta=0.1, optimizer=steady)
    assert torch.allclose(weights(streamed), weights(whole), atol=1e-6)


@pytest.mark.parametrize("options", [{"loss": "kto"}, {"precompute_ref": True}])
def test_options_that_need_all_rows_before_the_first_step_are_refused_for_streams(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    name, value = next(iter(options.items()))
    with pytest.raises(ConfigError, match=rf"trainer.{name} = {str(value).lower()}: .* the samples are streamed"):
        train(tmp_path, "run", iterable(ROWS), **options)
