"""Shared fixtures: tiny models and tokenizers built without downloads, trainers, and fresh Python processes."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import GPT2LMHeadModel, LlamaForCausalLM, PreTrainedTokenizerFast

from rlcore_testing.rig.isolate import default_signals
from rlcore_testing.small import make_gpt2, make_llama, make_tokenizer

sys.path.insert(0, str(Path(__file__).parent / "warm"))
sys.path.insert(0, str(Path(__file__).parent / "rig"))

from browser import browser  # noqa: F401  a fixture
from fresh_python import python  # noqa: F401  a fixture
from no_hub import unreachable_hub  # noqa: F401  a fixture
from tokenizer_fixtures import byte_tokenizer, char_tokenizer, chat_tokenizer, llama_tokenizer  # noqa: F401  fixtures
from warm_fixtures import (  # noqa: F401
    _laws_that_fork,
    pytest_collection,
    pytest_collection_modifyitems,
    warm_python,
)


@pytest.fixture(autouse=True)
def _signals_that_arrive() -> Iterator[None]:
    """Signals reach tests and the processes that they start, even if this process inherited that they are ignored."""
    with default_signals():
        yield


@pytest.fixture
def tiny_gpt2() -> GPT2LMHeadModel:
    return make_gpt2()


@pytest.fixture
def tiny_llama() -> LlamaForCausalLM:
    return make_llama()


@pytest.fixture(params=["gpt2", "llama"])
def tiny_model(request: pytest.FixtureRequest) -> GPT2LMHeadModel | LlamaForCausalLM:
    return make_gpt2() if request.param == "gpt2" else make_llama()


@pytest.fixture(params=[False, True], ids=["pad", "pad is eos"])
def either_tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    return make_tokenizer(pad_is_eos=request.param)


@pytest.fixture
def eos_padded_tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer(pad_is_eos=True)


@pytest.fixture
def make_trainer(tmp_path: Path, char_tokenizer: PreTrainedTokenizerFast) -> Callable[..., Any]:  # noqa: F811
    """Factory of trainers that are ready to step, each with its own run folder."""
    from rlcore.config import merge, structure
    from rlcore.settings import TrainConfig
    from rlcore.training.build import assemble
    from rlcore.training.inputs import Inputs

    made = iter(range(1000))

    def make(
        name: str, model: Any, *, tokenizer: Any = None, sections: Any = None, inputs: Any = None, **options: Any
    ) -> Any:
        """Return the trainer `name` for `model`, with its options, other sections of the configuration, and inputs."""
        settings = {
            "trainer": {"name": name, **options},
            "run": {"root": str(tmp_path / f"runs-{next(made)}"), "steps": 100},
            "loggers": [],
        }
        brought = Inputs(model=model, tokenizer=tokenizer or char_tokenizer, **(inputs or {}))
        config = structure(TrainConfig, merge(settings, sections or {}), where="test")
        return assemble(config, brought, "test").trainer

    return make
