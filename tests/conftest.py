"""Small models and tokenizers, made on the spot: nothing is downloaded."""

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

from rlcore.testing.small import make_gpt2, make_llama, make_tokenizer

sys.path.insert(0, str(Path(__file__).parent / "warm"))

from warm_python import WarmPython


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPython]:
    """Start Python processes that have torch and transformers imported already."""
    warm = WarmPython(tmp_path_factory.mktemp("warm"))
    yield warm
    warm.close()


@pytest.fixture
def char_tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()


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
def make_trainer(tmp_path: Path, char_tokenizer: PreTrainedTokenizerFast) -> Callable[..., Any]:
    """Return a factory of trainers that are ready to go, each with a run folder of its own."""
    from rlcore.assembly import assemble
    from rlcore.config import structure
    from rlcore.inputs import Inputs
    from rlcore.settings import TrainConfig

    made = iter(range(1000))

    def make(
        name: str, model: Any, *, tokenizer: Any = None, sections: Any = None, inputs: Any = None, **options: Any
    ) -> Any:
        """Make the trainer `name` for `model`, with its options, other sections of the configuration, and inputs."""
        settings = {
            "trainer": {"name": name, **options},
            "run": {"root": str(tmp_path / f"runs-{next(made)}"), "steps": 100},
            "loggers": [],
            **(sections or {}),
        }
        brought = Inputs(model=model, tokenizer=tokenizer or char_tokenizer, **(inputs or {}))
        return assemble(structure(TrainConfig, settings, where="test"), brought, "test").trainer

    return make
