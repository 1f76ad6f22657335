"""Tests that a plan uses the decoders that the run will use, although it samples fewer prompts."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from rlcore.config import merge
from rlcore.protocols import Decoder
from rlcore.training.api import train_from_config
from rlcore_testing.small import make_tokenizer
from rlcore_tools.plan.estimate import estimate
from rlcore_transformers.models.policy import ModelPolicy

LENGTH = 20
PROMPTS = [format(i, "06b").replace("0", "a").replace("1", "b") + "c" * (LENGTH - 6) for i in range(64)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, tokenizer = tmp_path_factory.mktemp("model"), make_tokenizer()
    torch.manual_seed(0)
    config = GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=len(tokenizer), n_positions=64)
    GPT2LMHeadModel(config).save_pretrained(root)
    tokenizer.save_pretrained(root)
    return root


def reward(outputs: list[str], **_: Any) -> list[float]:
    return [float(len(set(output))) for output in outputs]


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """List the decoders that policies create."""
    made: list[str] = []
    make = ModelPolicy.decoder

    @functools.wraps(make)
    def decoder(*args: Any, **asked: Any) -> Decoder:
        found = make(*args, **asked)
        made.append(type(found).__name__)
        return found

    monkeypatch.setattr(ModelPolicy, "decoder", decoder)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_prompts", "num_sampled", "size", "expected"),
    [
        (64, 64, 64, "PackedDecoder"),
        (64, 64, 16, "PackedDecoder"),  # 48 prompts wait for free rows
        (24, 24, 16, "CausalDecoder"),  # too few prompts wait
        (4, 64, 16, "CausalDecoder"),  # a cache of shared prompts accepts no joining prompts
    ],
)
def test_a_plan_samples_with_the_decoder_that_the_run_has(
    num_prompts: int, num_sampled: int, size: int, expected: str, folder: Path, begun: list[str], tmp_path: Path
) -> None:
    prompts = PROMPTS[:num_prompts]
    values: dict[str, Any] = {
        "model": {"path": str(folder)},
        "trainer": {"name": "ppo", "rollouts": num_sampled, "batch_size": 16, "epochs": 1},
        "data": {"prompts": prompts, "eval_prompts": prompts, "reward_fn": reward},
        "gen": {"max_new_tokens": 24, "batch_size": size},
        "eval": {"batch_size": len(prompts)},
    }
    estimate(values, "test")
    planned = set(begun)
    begun.clear()
    once = {"run": {"steps": 1, "name": "run", "root": str(tmp_path)}, "loggers": [], "checkpoint": {"at_end": False}}
    train_from_config(merge(values, once), "test")
    assert planned == set(begun) == {expected}
