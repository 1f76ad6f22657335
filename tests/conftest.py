"""Small models and tokenizers, made on the spot: nothing is downloaded."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

LETTERS = "abcdefghijklmnopqrstuvwxyz .!?"


def make_char_tokenizer(*, pad_is_eos: bool = False) -> PreTrainedTokenizerFast:
    """Make a tokenizer with one token a character: ids 0..29 are LETTERS, 30 is </s>, 31 is <pad> (or </s>)."""
    vocab = {letter: i for i, letter in enumerate(LETTERS)} | {"</s>": 30, "<pad>": 31}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="</s>", pad_token="</s>" if pad_is_eos else "<pad>", unk_token="?"
    )


def make_gpt2(layers: int = 2, width: int = 16, heads: int = 2, vocab: int = 32, seed: int = 0) -> GPT2LMHeadModel:
    """Make a GPT-2 with random weights large enough that its distributions are far from uniform."""
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(
        GPT2Config(
            n_layer=layers, n_embd=width, n_head=heads, vocab_size=vocab, n_positions=64, bos_token_id=30,
            eos_token_id=30, pad_token_id=31, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            initializer_range=0.3,
        )
    )  # fmt: skip
    model.eval()
    return model


def make_llama(layers: int = 2, width: int = 16, vocab: int = 32, seed: int = 0) -> LlamaForCausalLM:
    """Make a Llama with grouped keys, rotary positions and an untied head."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=layers, hidden_size=width, intermediate_size=2 * width, num_attention_heads=4,
            num_key_value_heads=2, vocab_size=vocab, max_position_embeddings=64, bos_token_id=30, eos_token_id=30,
            pad_token_id=31, initializer_range=0.3, tie_word_embeddings=False,
        )
    )  # fmt: skip
    model.eval()
    return model


@pytest.fixture
def char_tokenizer() -> PreTrainedTokenizerFast:
    return make_char_tokenizer()


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
    return make_char_tokenizer(pad_is_eos=request.param)


@pytest.fixture
def eos_padded_tokenizer() -> PreTrainedTokenizerFast:
    return make_char_tokenizer(pad_is_eos=True)


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
