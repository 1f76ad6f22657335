"""Tokenizers trained on the spot, one of each family whose habits differ; Python started anew; where tiny.py is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # for tiny.py

CORPUS = ["the cat sat on the mat .", "the dog ate the cat 's food !", "question : why ? answer : because ."] * 3
CHAT = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CHAT_TOKENS = ["<|user|>", "<|assistant|>", "<|system|>", "<|end|>"]


@pytest.fixture(scope="session")
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE as GPT-2 has it: no BOS by habit, one token for BOS, EOS and padding."""
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
    """BPE with a space put before every text and BOS before every sequence, as Llama has it."""
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
    """The byte-level tokenizer with tokens and a template for conversations."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(byte_tokenizer.backend_tokenizer.to_str()),
        eos_token="<|eos|>", bos_token="<|eos|>", pad_token="<|eos|>",
    )  # fmt: skip
    tokenizer.add_special_tokens({"additional_special_tokens": CHAT_TOKENS})
    tokenizer.chat_template = CHAT
    return tokenizer


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Python in the test's folder on this checkout, without the RLCORE_ switches this process was given itself."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RLCORE_")}
        return subprocess.run(
            [sys.executable, *arguments], env={**kept, "PYTHONPATH": str(HERE.parents[1]), **environment},
            cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip

    return run
