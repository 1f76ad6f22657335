"""Fixtures of small tokenizers of several families, for the tests of the core and of packages that tokenise."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from rlcore_testing.small import make_tokenizer

CORPUS = ["the cat sat on the mat .", "the dog ate the cat 's food !", "question : why ? answer : because ."] * 3
CHAT = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CHAT_TOKENS = ["<|user|>", "<|assistant|>", "<|system|>", "<|end|>"]


@pytest.fixture
def char_tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()


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
