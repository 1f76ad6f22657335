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
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GPT2LMHeadModel, LlamaForCausalLM, PreTrainedTokenizerFast

from rlcore.testing.rig.isolate import default_signals
from rlcore.testing.small import make_gpt2, make_llama, make_tokenizer

sys.path.insert(0, str(Path(__file__).parent / "warm"))
sys.path.insert(0, str(Path(__file__).parent / "rig"))

from browser import browser  # noqa: F401  a fixture
from fresh_python import python  # noqa: F401  a fixture
from warm_fixtures import _laws_that_fork, warm_python  # noqa: F401  fixtures

CORPUS = ["the cat sat on the mat .", "the dog ate the cat 's food !", "question : why ? answer : because ."] * 3
CHAT = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CHAT_TOKENS = ["<|user|>", "<|assistant|>", "<|system|>", "<|end|>"]


@pytest.fixture(autouse=True)
def _signals_that_arrive() -> Iterator[None]:
    """Signals reach tests and the processes that they start, even if this process inherited that they are ignored."""
    with default_signals():
        yield


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


@pytest.fixture(scope="session")
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """GPT-2-style byte-level BPE: no BOS added by default, one token for BOS, EOS and padding."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|eos|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    backend.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|eos|>", bos_token="<|eos|>", pad_token="<|eos|>"
    )


@pytest.fixture(scope="session", params=["first", "always"])
def llama_tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    """Llama-style BPE with a space before every text and BOS before every sequence."""
    backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=request.param)
    backend.decoder = decoders.Metaspace(prepend_scheme=request.param)
    trainer = trainers.BpeTrainer(
        vocab_size=200, special_tokens=["<unk>", "<s>", "</s>"], initial_alphabet=list("|\n0123456789"),
        show_progress=False,
    )  # fmt: skip
    backend.train_from_iterator(CORPUS, trainer)
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


@pytest.fixture
def chat_tokenizer(byte_tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """The byte-level tokenizer with special tokens and a chat template."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(byte_tokenizer.backend_tokenizer.to_str()),
        eos_token="<|eos|>", bos_token="<|eos|>", pad_token="<|eos|>",
    )  # fmt: skip
    tokenizer.add_special_tokens({"additional_special_tokens": CHAT_TOKENS})
    tokenizer.chat_template = CHAT
    return tokenizer
